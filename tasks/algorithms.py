"""The table of named algorithms, one line each, and the functions that build them from options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.applies import Sgd
from tasks.maps import Gradient, LocalSteps
from tasks.reduces import Mean
from tasks.user_code import Code


def synchronous(
    *, lr: float = 0.1, momentum: float = 0.0, nesterov: bool = False, batch_size: int | None = None
) -> Algorithm:
    """The mean gradient of all partitions, then one step of one machine."""
    return Algorithm(Gradient(batch_size), Mean(), Sgd(lr, momentum, nesterov))


def local_training(
    *,
    lr: float = 0.1,
    momentum: float | None = None,
    nesterov: bool | None = None,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    batch_size: int | None = 32,
    optimizer: str = "SGD",
    optimizer_options: Mapping[str, Any] | None = None,
    clip_norm: float | None = None,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
    outer_nesterov: bool = False,
) -> Algorithm:
    """Local training with periodic averaging; epochs go before steps, and one epoch is the default.

    As `fed_avg`, McMahan et al. 2017, Algorithm 1; as `diloco`, Douillard et al. 2023, Algorithm 1.
    """
    options = dict(optimizer_options or {})
    options |= {} if momentum is None else {"momentum": momentum}
    options |= {} if nesterov is None else {"nesterov": nesterov}
    epochs = local_epochs if local_epochs or local_steps else 1
    local = LocalSteps(
        steps=None if epochs else local_steps,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        lr=lr,
        options=tuple(options.items()),
        clip_norm=clip_norm,
    )
    return Algorithm(local, Mean(), Sgd(outer_lr, outer_momentum, outer_nesterov))


DILOCO: dict[str, Any] = {
    **{"optimizer": "AdamW", "lr": 1e-3, "local_steps": 50},
    **{"outer_lr": 0.7, "outer_momentum": 0.9, "outer_nesterov": True},
}

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = {
    "sync_sgd": synchronous,
    "fed_avg": local_training,
    "diloco": partial(local_training, **DILOCO),
}


def build_algorithm(named: str | Code, options: Mapping[str, Any]) -> Algorithm:
    """A named algorithm, or the user's own, with options; one that it does not take is refused by name."""
    make, name = (named.load(), named.reference) if isinstance(named, Code) else (ALGORITHMS[named], named)
    taken = inspect.signature(make).parameters
    refused = ", ".join(sorted(set(options) - set(taken)))
    if refused:
        raise UsageError(f"algorithm {name} takes no {refused}; it takes {', '.join(taken) or 'no options'}")
    algorithm = make(**options)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm {name} must return an Algorithm, not {type(algorithm).__name__}")
    return algorithm
