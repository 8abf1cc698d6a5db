"""The optimizers of local training, and the steps that they take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from roundweave.storage.errors import CodeError, UsageError, failing_as, located, near, one_line
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.maps.backprop import descend
from roundweave.tasks.own_code.code import Code, code_of, find_code, is_reference

Trained = Mapping[str, torch.nn.Parameter]
"""The parameters of a network that are trained, by name."""


class Stepper:
    """Takes steps of trained parameters along their gradients, and clears these; without an optimizer, of SGD.

    `clip_norm` bounds the gradients' L2 norm. `state` gives what the optimizer is to keep, vectors (element,) by
    slot. The learning rates of the optimizer's groups are multiplied by that of the step.
    """

    def __init__(
        self,
        trained: Trained,
        clip_norm: float | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        state: Callable[[], dict[str, Vectors]] = dict,
    ) -> None:
        self.trained, self.clip_norm, self.optimizer, self.state = trained, clip_norm, optimizer, state
        self.parameters = list(trained.values())
        self.rates = [group["lr"] for group in optimizer.param_groups] if optimizer is not None else []

    def __call__(self, lr: float) -> None:
        """Take a step with this learning rate."""
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        if self.optimizer is None:
            descend(self.parameters, lr)
            return
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * lr
        self.optimizer.step()
        self.optimizer.zero_grad()


def trained_of(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a network that are trained, by name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def kept_optimizer(given: Any) -> Any:
    """The code of a callable, and a name in torch's spelling; any other value is returned unchanged.

    >>> kept_optimizer("adamw"), kept_optimizer("Other")
    ('AdamW', 'Other')
    """
    if callable(given):
        return code_of(given)
    return _names().get(given.lower(), given) if isinstance(given, str) else given


def is_own_optimizer(given: Any) -> bool:
    """Whether an optimizer is a function of the user's, by value or reference, and no name."""
    return not isinstance(given, str) or is_reference(given)


def own_optimizer(given: Any) -> str | Code:
    """The code of an optimizer that is a function of the user's; a name in torch's spelling; `CodeError`."""
    return find_code(given) if isinstance(given, str) and is_reference(given) else kept_optimizer(given)


def check_name(name: str) -> None:
    """Raise `UsageError` for a name that is no optimizer of torch, or an optimizer whose step calls the loss."""
    if name not in _names().values():
        meant = [_names()[close] for close in near(name.lower(), _names())] or _names().values()
        raise UsageError(f"torch.optim has no optimizer {name!r}; there is {', '.join(meant)}")
    check_optimizer(getattr(torch.optim, name))


def check_optimizer(kind: type[torch.optim.Optimizer]) -> None:
    """Raise `UsageError` for an optimizer whose step calls the loss."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"optimizer {kind.__name__} computes the loss several times in a step, and a map computes it once; "
            "use another"
        )


def optimizer_of(
    name: str, parameters: Sequence[Any], lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """A new optimizer for parameters, or groups of them; raises `UsageError` if it takes them or options not."""
    try:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, **{"lr": lr, **options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {name}: {error}") from error
    return optimizer


def made_optimizer(code: Code, network: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the user's function makes for a network.

    Raises `CodeError` if it fails, and `UsageError` if it does not give an optimizer of all trained parameters.
    """
    who = f"optimizer {code.reference}"
    with failing_as(lambda error: CodeError(f"{who} failed with {located(error)}")):
        optimizer = code.load()(network)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"{who} must return a torch.optim.Optimizer, not {type(optimizer).__name__}")
    check_optimizer(type(optimizer))
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if given - {id(parameter) for parameter in network.parameters()}:
        raise UsageError(
            f"{who} has parameters of another network than it was called with; take those of this one"
        )
    if left := [name for name, parameter in trained_of(network).items() if id(parameter) not in given]:
        raise UsageError(
            f"{who} leaves out {left[0]}; give all to groups, or let the model freeze what is not trained"
        )
    return optimizer


def decay_groups(network: torch.nn.Module, without: Sequence[str]) -> list[dict[str, Any]]:
    """A group of the trained parameters of a network, and one of those that are not to decay: `biases`, `norms`.

    A bias has ``bias`` in the last part of its name; a normalisation layer has ``norm`` in the name of its class.
    """
    norms = (module for module in network.modules() if "norm" in type(module).__name__.lower())
    kept = {id(parameter) for module in norms for parameter in module.parameters(recurse=False)}
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in trained_of(network).items():
        bias = "biases" in without and "bias" in name.rpartition(".")[2]
        groups[bias or ("norms" in without and id(parameter) in kept)]["params"].append(parameter)
    return groups


def check_steps(optimizer: torch.optim.Optimizer) -> None:
    """Try a step of an optimizer with gradients of zero; raises `UsageError` if it fails."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    who = f"optimizer {type(optimizer).__name__}"
    with failing_as(lambda error: UsageError(f"{who} cannot train this network: {one_line(error)}")):
        optimizer.step()


@functools.cache
def _names() -> Mapping[str, str]:
    """The names of torch's optimizers by their names in lower case."""
    base = torch.optim.Optimizer
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {name.lower(): name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base}
