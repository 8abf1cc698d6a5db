"""The table of named algorithms, one line each, and the functions that build them from options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from storage.errors import UsageError
from tasks.algebra import Algorithm, Reduce
from tasks.applies.sgd import Sgd
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.matching.networks import By
from tasks.reduces.matched import Matched, To
from tasks.reduces.mean import Mean
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
    init: Literal["shared", "per-partition"] = "shared",
    match: By | None = None,
    match_to: To | None = None,
    soft: int | None = None,
) -> Algorithm:
    """Local training with periodic averaging; epochs go before steps, and one epoch is the default.

    As `fed_avg`, McMahan et al. 2017, Algorithm 1; as `diloco`, Douillard et al. 2023, Algorithm 1; as `matched`
    with hidden units matched before the mean, to the round's start, or to one another where each began on its own.
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
        init=init,
    )
    return Algorithm(local, _reduce(init, match, match_to, soft), Sgd(outer_lr, outer_momentum, outer_nesterov))


def _reduce(init: str, match: By | None, to: To | None, soft: int | None) -> Reduce:
    if match is None:
        if to is not None or soft is not None:
            raise UsageError("match_to and soft need match: by what the units are compared")
        return Mean()
    own: To = "many" if soft is None else "first"
    return Matched(Mean(), match, to=to or (own if init == "per-partition" else "start"), soft=soft)


DILOCO: dict[str, Any] = {
    **{"optimizer": "AdamW", "lr": 1e-3, "local_steps": 50},
    **{"outer_lr": 0.7, "outer_momentum": 0.9, "outer_nesterov": True},
}

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = {
    "sync_sgd": synchronous,
    "fed_avg": local_training,
    "diloco": partial(local_training, **DILOCO),
    "matched": partial(local_training, match="weights"),
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
