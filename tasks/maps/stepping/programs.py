"""A step of backprop as a list of torch's operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


class Place(int):
    """The number of a place, in the stead of the tensor that an operation before, or the caller, has put there."""


class Rate:
    """Stands for minus the learning rate."""


NOWHERE = Place(-1)
"""The place of what an operation may return, but does not."""


@dataclass(frozen=True)
class Operation:
    """A call of one of torch's operations, with places for tensors, and the places of what it returns."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[Place, ...]

    @property
    def places(self) -> list[Place]:
        """The places of the tensors that it is given."""
        given = leaves([self.arguments, list(self.keywords.values())])
        return [value for value in given if isinstance(value, Place)]


@dataclass(frozen=True)
class Program:
    """Operations in their order, on so many `inputs`, which have the first places, and on constants.

    `outputs` are the places of what it gives: a loss, and gradients.
    """

    inputs: int
    constants: Mapping[Place, torch.Tensor]
    operations: tuple[Operation, ...]
    outputs: tuple[Place, ...]

    def descending(self, parameters: Sequence[Place]) -> Program:
        """The same with a step of plain SGD along the gradients, of these parameters; it gives the loss alone."""
        loss, *gradients = self.outputs
        descents = (
            Operation(torch.ops.aten.add_.Tensor, (parameter, gradient), {"alpha": Rate()}, (parameter,))
            for parameter, gradient in zip(parameters, gradients, strict=True)
        )
        return replace(self, operations=(*self.operations, *descents), outputs=(loss,))

    @property
    def needed(self) -> Program:
        """The same without what nothing is made of: views that only the eager step took."""
        needed, kept = set(self.outputs), list[Operation]()
        for operation in reversed(self.operations):
            draws = torch.Tag.nondeterministic_seeded in operation.function.tags
            if draws or operation.function._schema.is_mutable or needed & set(operation.results):
                needed |= set(operation.places)
                kept.append(operation)
        return replace(self, operations=tuple(reversed(kept)))

    @property
    def source(self) -> str:
        """The text of a function in TorchScript of minus the rate, the inputs and the constants.

        Raises `ValueError` for an argument that has no text.
        """
        given = ["rate: float", *(f"{_name(Place(p))}: Tensor" for p in (*range(self.inputs), *self.constants))]
        lines = [f"    {_statement(operation)}" for operation in self.operations]
        returned = f"    return {_text(self.outputs, '({},)')}"
        return "\n".join([f"def step({', '.join(given)}):", *lines, returned, ""])


def mapped(change: Callable[[Any], Any], kind: type, value: Any) -> Any:
    """A value with each instance of a kind changed, also in lists, tuples and dictionaries."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(change, kind, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(change, kind, item) for item in value)
    return value


def leaves(value: Any) -> list[Any]:
    """What a value holds, without the lists and tuples."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def _statement(operation: Operation) -> str:
    arguments = [_text(value) for value in operation.arguments]
    arguments += [f"{name}={_text(value)}" for name, value in operation.keywords.items()]
    call = f"{operation.function._schema.name.replace('aten::', 'torch.ops.aten.')}({', '.join(arguments)})"
    if not operation.results:
        return call
    several = len(operation.results) > 1 or "[]" in str(operation.function._schema.returns[0].type)
    names = ", ".join(map(_name, operation.results)) + ("," if several else "")
    return f"{names} = {call}"


def _name(place: Place) -> str:
    return "_" if place == NOWHERE else f"tensor{int(place)}"


def _text(value: Any, listed: str = "[{}]") -> str:
    """A value as TorchScript writes it."""
    match value:
        case Place():
            text = _name(value)
        case Rate():
            text = "rate"
        case list() | tuple() if value:
            text = listed.format(", ".join(map(_text, value)))
        case list() | tuple():
            text = "torch.jit.annotate(List[int], [])"
        case float() if not math.isfinite(value):
            text = f"float('{value}')"
        case torch.device():
            text = f"torch.device('{value}')"
        case None | bool() | int() | float() | str() | torch.dtype() | torch.layout() | torch.memory_format():
            text = repr(value)
        case _:
            raise ValueError(f"an argument of type {type(value).__name__}")
    return text
