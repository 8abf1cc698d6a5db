"""The state of an optimizer, such as Adam's moments, as slots that a partition carries from round to round.

A slot is a key of the state that torch keeps for each parameter. Its vectors have the layout of the parameters. A
single number, such as Adam's ``step``, fills the place of its parameter. A parameter without state, which has had
no gradient yet, has zeros in all slots, and one with zeros in all slots gets no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.tensors import Slots, Specs, Vectors, dtype_name, pack, views
from roundweave.tasks.algorithms.maps.optimizers import Trained, check_steps

EXACT = {"int": torch.float32, "float": torch.float64}
"""The narrowest dtype that has the numbers of a Python type: of whole ones, those up to 2^24."""


@dataclass(frozen=True)
class Slot:
    """A key of an optimizer's state. `number` is the type or dtype of a single number, empty for a tensor."""

    key: str
    number: str = ""

    def value(self, view: torch.Tensor) -> Any:
        """The state of a parameter from its place in the slot's vector, of the parameter's shape."""
        if not self.number:
            return view.clone()
        number = view.reshape(-1)[0].item()
        kind = {"int": int, "float": float}.get(self.number)
        return kind(number) if kind else torch.tensor(number, dtype=getattr(torch, self.number))

    def filled(self, value: Any, parameter: torch.Tensor) -> torch.Tensor:
        """The state of a parameter in the parameter's shape; raises `UsageError` for a number that is rounded."""
        if not self.number:
            return value  # type: ignore[no-any-return]
        filled = torch.full_like(parameter, float(value))
        if filled.numel() and filled.reshape(-1)[0].item() != float(value):
            raise UsageError(f"{self.key} of the optimizer's state is {float(value)}, which {filled.dtype} rounds")
        return filled


def find_slots(optimizer: torch.optim.Optimizer, trained: Trained) -> tuple[Slot, ...]:
    """The slots of an optimizer, found by a trial step; raises `UsageError` if it keeps anything else."""
    before = _settings(optimizer)
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
    if _settings(optimizer) != before or optimizer.state.keys() - trained.values():
        reasons.append("something that is of no parameter")
    if reasons:
        who = f"optimizer {type(optimizer).__name__}"
        raise UsageError(f"{who} keeps {reasons[0]}; only optimizer_state = fresh goes with it")
    return tuple(slots)


def _settings(optimizer: torch.optim.Optimizer) -> list[str]:
    """What the optimizer's groups hold besides their parameters."""
    return [repr({key: group[key] for key in group if key != "params"}) for group in optimizer.param_groups]


def _number(values: list[Any]) -> str:
    """The type or dtype if all values are single numbers; empty if not."""
    if all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in values):
        return dtype_name(values[0].dtype)
    kind = type(values[0]).__name__
    return kind if all(type(value) in (int, float) and type(value).__name__ == kind for value in values) else ""


def _unkept(slot: Slot, value: Any, name: str, parameter: torch.Tensor) -> str | None:
    """Why the value of a parameter does not fit its place in a slot's vector; None if it does."""
    what, wanted = f"{slot.key} of {name}", parameter.dtype
    if slot.number:
        kind = EXACT.get(slot.number) or getattr(torch, slot.number)
        exact = torch.promote_types(kind, wanted) == wanted and (kind.is_floating_point or wanted.itemsize > 2)
        return None if exact else f"{what} as a number of type {slot.number}, which {dtype_name(wanted)} rounds"
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        return f"{what} as {shape}, where the parameter is {tuple(parameter.shape)}"
    return None if value.dtype == wanted else f"{what} in {dtype_name(value.dtype)}, not in {dtype_name(wanted)}"


def set_state(
    optimizer: torch.optim.Optimizer,
    slots: tuple[Slot, ...],
    trained: Trained,
    specs: Specs,
    carry: Slots,
) -> None:
    """Give an optimizer the state that a partition carries, vectors (element,) by slot; none in round 1."""
    kept = {slot: views(specs, carry[slot.key]) for slot in slots if slot.key in carry}
    for name, parameter in trained.items():
        if any(named[name].any() for named in kept.values()):
            optimizer.state[parameter] = {slot.key: slot.value(named[name]) for slot, named in kept.items()}


def state_of(
    optimizer: torch.optim.Optimizer, slots: tuple[Slot, ...], trained: Trained, specs: Specs
) -> dict[str, Vectors]:
    """The state of an optimizer as vectors (element,) by slot; raises `UsageError` if it has other slots."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in trained.items()}
    keys = {slot.key for slot in slots}
    if other := next((sorted(map(str, state)) for state in states.values() if state and set(state) != keys), None):
        raise UsageError(f"the optimizer keeps {other} now, and kept {sorted(keys)} after its first step")

    def of(slot: Slot, name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
        state = states[name]
        return slot.filled(state[slot.key], parameter) if state else torch.zeros_like(parameter)

    return {slot.key: pack(specs, {n: of(slot, n, p) for n, p in trained.items()}) for slot in slots}
