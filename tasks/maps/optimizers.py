"""Torch's optimizers, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field

from storage.errors import UsageError, near, one_line


def optimizer_name(name: str) -> str:
    """An optimizer's name in torch's spelling, from a name in any case; an unknown name is returned unchanged.

    >>> optimizer_name("adamw"), optimizer_name("Other")
    ('AdamW', 'Other')
    """
    return _names().get(name.lower(), name)


Optimizer = Annotated[
    str,
    Field(description="the local optimizer: any of torch.optim; it restarts each round"),
    AfterValidator(optimizer_name),
]


def check_optimizer(name: str) -> None:
    """Raise `UsageError` for a name that is no optimizer of torch, or an optimizer whose step calls the loss."""
    if name not in _names().values():
        meant = [_names()[close] for close in near(name.lower(), _names())] or _names().values()
        raise UsageError(f"torch.optim has no optimizer {name!r}; there is {', '.join(meant)}")
    if inspect.signature(_kind(name).step).parameters["closure"].default is inspect.Parameter.empty:
        raise UsageError(
            f"optimizer {name} computes the loss several times a step, which a batch has one of; use another"
        )


def optimizer_of(
    name: str, parameters: Sequence[torch.nn.Parameter], lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """A new optimizer for some parameters; raises `UsageError` if it does not take them or its options."""
    try:
        optimizer: torch.optim.Optimizer = _kind(name)(parameters, **{"lr": lr, **options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {name}: {error}") from error
    return optimizer


def check_steps(optimizer: torch.optim.Optimizer) -> None:
    """Try a step of an optimizer with gradients of zero; raises `UsageError` if it fails."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"optimizer {type(optimizer).__name__} cannot train this network: {one_line(error)}"
        ) from error


def _kind(name: str) -> Any:
    return getattr(torch.optim, name)


@functools.cache
def _names() -> Mapping[str, str]:
    """The names of torch's optimizers by their names in lower case."""
    base = torch.optim.Optimizer
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {name.lower(): name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base}
