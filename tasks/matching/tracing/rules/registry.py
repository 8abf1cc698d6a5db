"""The table of rules; a rule says what an operation does to the axes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar, cast

from roundweave.tasks.matching.tracing.axes import Atom, Axes, UnitNumbers, is_axes
from roundweave.tasks.matching.unofficial import OpOverload, is_pointwise, operation_name

Result = Axes | tuple[Axes | None, ...] | None
Rule = Callable[..., Result]
R = TypeVar("R", bound=Rule)
Dependence = tuple[Axes, Axes]
"""Axes, and other axes on whose index the order of their units may depend, besides on one another."""


class Unknown(ValueError):
    """Raised by a rule that does not cover the way in which an operation is used."""


@dataclass
class Site:
    """One operation in the graph: its name, the shapes of its outputs, and what its rule notes about it.

    `used` holds the indices of those outputs of a tuple that are used; `training` is the network's mode; `unequal`
    says of an axis of the operands whether values along it are equal by chance alone. The rule adds to
    `dependences` where axes are summed over or looked up, and sets `summed` if some are summed. `looked_up` has
    the axis along which parts of a tensor were looked up, its other axes, and by what. `read` has the numbers that
    the rule understood.
    """

    name: str
    operation: OpOverload
    shapes: Sequence[Sequence[int]]
    used: frozenset[int] = frozenset()
    training: bool = False
    unequal: Callable[[Atom], bool] = lambda axis: False
    dependences: list[Dependence] = field(default_factory=list)
    summed: bool = False
    looked_up: list[tuple[Atom, Axes, Axes]] = field(default_factory=list)
    read: list[Axes] = field(default_factory=list)

    @property
    def shape(self) -> list[int]:
        """The shape of the first output."""
        return list(self.shapes[0])

    def contract(self, axes: Axes, batch: Axes, *others: Axes) -> None:
        """Note that axes are summed over, separately for each index of `batch` and of each tensor's `others`."""
        self.summed = True
        self.dependences.append((axes, batch))
        self.dependences += [(rest, batch) for rest in others if rest]
        self.apart(batch)

    def reads(self, axes: Axes | None, what: str, size: int | None = None) -> TypeGuard[UnitNumbers]:
        """Tell whether these are numbers of this kind, of as many units; they then count as understood."""
        known = isinstance(axes, UnitNumbers) and axes.what == what and size in (None, axes.of[0].size)
        if known:
            self.read.append(cast("UnitNumbers", axes))
        return known

    def apart(self, axes: Axes) -> None:
        """Note that the order of units on these axes may depend only on one another."""
        if axes:
            self.dependences.append((axes, []))

    def mix(self, axes: Axes, dims: Sequence[int], why: str) -> Axes:
        """Pin the axes of these dimensions, along which an operation mixes places, and return the other axes.

        An output's place is made of several input places, so the order of the other units cannot depend on it.
        """
        for d in dims:
            axes[d].pin(why)
        others = [axis for d, axis in enumerate(axes) if d not in dims]
        self.apart(others)
        return others


RULES: dict[str, Rule] = {}
"""The rules by name; ``pointwise`` is that of all operations that torch tags so and that have no other one."""


def rule_of(operation: OpOverload) -> Rule | None:
    """Return the rule of an operation; None if there is none."""
    name = operation_name(operation).removeprefix("aten::")
    pointwise = "pointwise" if is_pointwise(operation) else ""
    return RULES.get(name) or RULES.get(name.removesuffix("_")) or RULES.get(pointwise)


def rule(*names: str) -> Callable[[R], R]:
    """Return a decorator that registers a rule for operations of these names, without a trailing underscore.

    One text may hold several names. Names outside of ATen begin with their library, as in ``torchvision::nms``.

    The rule is called with the site and the operation's arguments by their names in the schema, with axes in the
    place of tensors. It returns the axes of each output, or of one tensor for all outputs.
    """

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(" ".join(names).split(), function))
        return function

    return enter


def dimensions(dim: Any, rank: int) -> list[int]:
    """Dimensions as numbers from 0; None and an empty tuple mean all of them."""
    if dim is None or dim == ():
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)]


def tensors(arguments: Mapping[str, Any]) -> list[Axes]:
    """Return the axes of those arguments of an operation that are tensors, in order."""
    return [value for value in arguments.values() if is_axes(value)]
