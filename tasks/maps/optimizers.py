"""The optimizers of local training, and the steps that they take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from storage.errors import UsageError, near, one_line
from storage.values.tensors import Vectors
from tasks.maps.backprop import descend


class Stepper:
    """Takes steps of trained parameters along their gradients, and clears these; without an optimizer, of SGD.

    `clip_norm` bounds the gradients' L2 norm. `state` gives what the optimizer is to keep, vectors (element,) by
    slot. The learning rates of the optimizer's groups are multiplied by that of the step.
    """

    def __init__(
        self,
        trained: Iterable[torch.nn.Parameter],
        clip_norm: float | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        state: Callable[[], dict[str, Vectors]] = dict,
    ) -> None:
        self.trained, self.clip_norm, self.optimizer, self.state = list(trained), clip_norm, optimizer, state
        self.rates = [group["lr"] for group in optimizer.param_groups] if optimizer is not None else []

    def __call__(self, lr: float) -> None:
        """Take a step with this learning rate."""
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.clip_norm)
        if self.optimizer is None:
            descend(self.trained, lr)
            return
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * lr
        self.optimizer.step()
        self.optimizer.zero_grad()


def optimizer_name(name: str) -> str:
    """An optimizer's name in torch's spelling, from a name in any case; an unknown name is returned unchanged.

    >>> optimizer_name("adamw"), optimizer_name("Other")
    ('AdamW', 'Other')
    """
    return _names().get(name.lower(), name)


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
