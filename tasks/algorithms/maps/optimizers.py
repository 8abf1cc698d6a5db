"""The optimizers of local training, the steps that they take, and their state as vectors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from roundweave.storage.errors import CodeError, UsageError, failing_as, located, near, one_line
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.values.tensors import Slots, Specs, Vectors, dtype_name, pack, views
from roundweave.tasks.algorithms.maps.backprop import descend
from roundweave.tasks.own_code.code import Code, code_of, find_code, is_reference

Trained = Mapping[str, torch.nn.Parameter]
"""The parameters of a network that are trained, by name."""


@dataclass
class Stepper:
    """Takes steps of trained parameters along their gradients, and clears these. Without an optimizer it does SGD.

    `clip_norm` bounds the gradients' L2 norm. `state` gives the state of the optimizer, vectors (element,) by
    slot. The learning rates of the optimizer's groups are multiplied by that of the step.
    """

    trained: Trained
    clip_norm: float | None = None
    optimizer: torch.optim.Optimizer | None = None
    state: Callable[[], dict[str, Vectors]] = dict

    def __post_init__(self) -> None:
        self.parameters = list(self.trained.values())
        self.rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer is not None else []

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
    """Return the parameters of a network that are trained, by name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def kept_optimizer(given: Any) -> Any:
    """Return the code of a callable, and a name in torch's spelling; any other value unchanged.

    >>> kept_optimizer("adamw"), kept_optimizer("Other"), kept_optimizer(torch.optim.SGD)
    ('AdamW', 'Other', 'SGD')
    """
    given = _named(given)
    if callable(given):
        return code_of(given)
    return _names().get(given.lower().removeprefix("torch.optim."), given) if isinstance(given, str) else given


def is_own_optimizer(given: Any) -> bool:
    """Tell whether an optimizer is a function of the user's, by value or reference, and no name."""
    return not isinstance(_named(given), str) or is_reference(_named(given))


def _named(given: Any) -> Any:
    """Return the name of a class of torch's; any other value unchanged."""
    own = isinstance(given, type) and given is getattr(torch.optim, given.__name__, None)
    return given.__name__ if own else given


def own_optimizer(given: Any) -> str | Code:
    """Return the code of an optimizer that is the user's function, or a name in torch's spelling.

    Raises `CodeError`.
    """
    return find_code(given) if isinstance(given, str) and is_reference(given) else kept_optimizer(given)


def check_name(name: str) -> None:
    """Raise `UsageError` for a name that is no optimizer of torch, or an optimizer whose step calls the loss."""
    if name not in _names().values():
        meant = [_names()[close] for close in near(name.lower(), _names(), 3)] or _names().values()
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
    """Return a new optimizer for parameters, or groups. Raises `UsageError` if it refuses them or options."""
    with mistakes_as(lambda error: UsageError(f"optimizer {name}: {error}"), (TypeError, ValueError)):
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, **{"lr": lr, **options})
    return optimizer


def made_optimizer(code: Code, network: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the user's function makes for a network.

    Raises `CodeError` if it fails, and `UsageError` if it does not give an optimizer of all trained parameters.
    """
    who = f"optimizer {code.reference}"
    called = "; it is called with the network, as `lambda net: Adam(net.parameters())` is"
    with failing_as(lambda error: CodeError(f"{who} failed with {located(error)}{called}")):
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
    """Return a group of a network's trained parameters, and one of those without decay: `biases`, `norms`.

    A bias has ``bias`` in the last part of its name. A normalisation layer has ``norm`` in the name of its class.
    """
    norms = (module for module in network.modules() if "norm" in type(module).__name__.lower())
    kept = {id(parameter) for module in norms for parameter in module.parameters(recurse=False)}
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in trained_of(network).items():
        bias = "biases" in without and "bias" in name.rpartition(".")[2]
        groups[bias or ("norms" in without and id(parameter) in kept)]["params"].append(parameter)
    return groups


def check_steps(optimizer: torch.optim.Optimizer) -> None:
    """Try a step of an optimizer with gradients of zero. Raises `UsageError` if it fails."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    who = f"optimizer {type(optimizer).__name__}"
    with failing_as(lambda error: UsageError(f"{who} cannot train this network: {one_line(error)}")):
        optimizer.step()


@functools.cache
def _names() -> Mapping[str, str]:
    """Return the names of torch's optimizers by their names in lower case."""
    base = torch.optim.Optimizer
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {name.lower(): name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base}


EXACT = {"int": torch.float32, "float": torch.float64}
"""The narrowest dtype that has the numbers of a Python type: of whole ones, those up to 2^24."""


@dataclass(frozen=True)
class Slot:
    """A key of an optimizer's state. `number` is the type or dtype of a single number, empty for a tensor."""

    key: str
    number: str = ""

    def value(self, view: torch.Tensor) -> Any:
        """Return the state of a parameter from its place in the slot's vector, of the parameter's shape."""
        if not self.number:
            return view.clone()
        number = view.reshape(-1)[0].item()
        kind = {"int": int, "float": float}.get(self.number)
        return kind(number) if kind else torch.tensor(number, dtype=getattr(torch, self.number))

    def filled(self, value: Any, parameter: torch.Tensor) -> torch.Tensor:
        """Return the state of a parameter in the parameter's shape.

        Raises `UsageError` for a number that is rounded.
        """
        if not self.number:
            return value  # type: ignore[no-any-return]
        filled = torch.full_like(parameter, float(value))
        if filled.numel() and filled.reshape(-1)[0].item() != float(value):
            raise UsageError(f"{self.key} of the optimizer's state is {float(value)}, which {filled.dtype} rounds")
        return filled


def find_slots(optimizer: torch.optim.Optimizer, trained: Trained) -> tuple[Slot, ...]:
    """Return the slots of an optimizer, found by a trial step. Raises `UsageError` if it keeps anything else."""
    before = [_settings(optimizer), [*_attributes(optimizer)]]
    check_steps(optimizer)
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in trained.items()}
    keys = dict.fromkeys(key for state in states.values() for key in state)
    slots = [Slot(str(key), _number([state.get(key) for state in states.values()])) for key in keys]
    reasons = [
        reason
        for slot in slots
        for name, state in states.items()
        if (reason := _unkept(slot, state.get(slot.key), name, trained[name]))
    ]
    if [_settings(optimizer), [*_attributes(optimizer)]] != before or optimizer.state.keys() - trained.values():
        reasons.append("something that is of no parameter")
    if reasons:
        who = f"optimizer {type(optimizer).__name__}"
        raise UsageError(f"{who} keeps {reasons[0]}; only optimizer_state = fresh goes with it")
    return tuple(slots)


def _settings(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the settings of the optimizer's groups, without their parameters."""
    return [repr({key: group[key] for key in group if key != "params"}) for group in optimizer.param_groups]


def _attributes(kept: Any) -> Iterator[str]:
    """Yield the values in attributes of an optimizer, and in theirs, without those that belong to parameters."""
    if isinstance(kept, torch.optim.Optimizer):
        own = {key: value for key, value in vars(kept).items() if key not in OF_TORCH}
        yield from _attributes({**own, "settings": _settings(kept)})
    elif isinstance(kept, Mapping):
        for key, value in kept.items():
            yield str(key)
            yield from _attributes(value)
    elif isinstance(kept, list | tuple):
        for value in kept:
            yield from _attributes(value)
    elif isinstance(kept, torch.Tensor) and not isinstance(kept, torch.nn.Parameter):
        yield repr(kept.tolist())
    elif isinstance(kept, int | float | str):
        yield repr(kept)


OF_TORCH = {"state", "param_groups", "defaults", "_opt_called"}
"""The attributes of an optimizer that hold what it keeps of parameters, or say that a schedule is beside it."""


def _number(values: list[Any]) -> str:
    """Return the type or dtype if all values are single numbers; empty if not."""
    if all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in values):
        return dtype_name(values[0].dtype)
    kind = type(values[0]).__name__
    return kind if all(type(value) in (int, float) and type(value).__name__ == kind for value in values) else ""


def _unkept(slot: Slot, value: Any, name: str, parameter: torch.Tensor) -> str | None:
    """Return why the state of a parameter cannot go into a slot's vector; None if it can."""
    what, wanted = f"{slot.key} of {name}", parameter.dtype
    if slot.number:
        kind = EXACT.get(slot.number) or getattr(torch, slot.number)
        exact = torch.promote_types(kind, wanted) == wanted and (kind.is_floating_point or wanted.itemsize > 2)
        return None if exact else f"{what} as a number of type {slot.number}, which {dtype_name(wanted)} rounds"
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        return f"{what} as {shape}, where the parameter is {tuple(parameter.shape)}"
    return None if value.dtype == wanted else f"{what} in {dtype_name(value.dtype)}, not in {dtype_name(wanted)}"


ABSENT = -0.0
"""The mark of no state. A state may be zeros, and no optimizer begins with negative zeros."""


def set_state(
    optimizer: torch.optim.Optimizer,
    slots: tuple[Slot, ...],
    trained: Trained,
    specs: Specs,
    carry: Slots,
) -> None:
    """Give an optimizer the state that a partition carries, vectors (element,) by slot; none in round 1.

    A parameter without a state yet, because it had no gradient, has `ABSENT` in all slots.
    """
    kept = {slot: views(specs, carry[slot.key]) for slot in slots if slot.key in carry}
    for name, parameter in trained.items():
        if any(named[name].any() or not named[name].signbit().all() for named in kept.values()):
            optimizer.state[parameter] = {slot.key: slot.value(named[name]) for slot, named in kept.items()}


def state_of(
    optimizer: torch.optim.Optimizer, slots: tuple[Slot, ...], trained: Trained, specs: Specs
) -> dict[str, Vectors]:
    """Return the state of an optimizer as vectors (element,) by slot. Raises `UsageError` for other slots."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in trained.items()}
    keys = {slot.key for slot in slots}
    if other := next((sorted(map(str, state)) for state in states.values() if state and set(state) != keys), None):
        raise UsageError(f"the optimizer keeps {other} now, and kept {sorted(keys)} after its first step")

    def of(slot: Slot, name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
        state = states[name]
        return slot.filled(state[slot.key], parameter) if state else torch.full_like(parameter, ABSENT)

    return {slot.key: pack(specs, {n: of(slot, n, p) for n, p in trained.items()}) for slot in slots}
