"""The table of rules: what an operation does to the axes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tasks.matching.tracing.axes import Axes, is_axes, pin
from tasks.matching.unofficial import OpOverload

Result = Axes | tuple[Axes | None, ...] | None
Rule = Callable[..., Result]
R = TypeVar("R", bound=Rule)
Dependence = tuple[Axes, Axes]
"""Axes, and the others on whose index the order of their units may depend, besides on one another."""


class Unknown(ValueError):
    """The operation, as it is used here, has no rule."""


@dataclass
class Site:
    """Where an operation stands in the graph: its name, the shapes of its outputs, what it leads to.

    `used` holds the indices of a tuple's outputs that anybody uses, `uniform` the identities of the axes of
    constants whose elements are all alike. `dependences` collects what may depend on what where axes are summed
    over or looked up, `summed` says that some were summed.
    """

    name: str
    operation: OpOverload
    shapes: Sequence[Sequence[int]]
    used: frozenset[int] = frozenset()
    uniform: frozenset[int] = frozenset()
    dependences: list[Dependence] = field(default_factory=list)
    summed: bool = False

    @property
    def shape(self) -> list[int]:
        """The shape of the only, or the first, output."""
        return list(self.shapes[0])

    def contract(self, axes: Axes, batch: Axes, *others: Axes) -> None:
        """Note sums over axes of several tensors, one for each index of the batch and of each tensor's others."""
        self.summed = True
        self.dependences.append((axes, batch))
        self.dependences += [(rest, batch) for rest in others if rest]
        self.apart(batch)

    def apart(self, axes: Axes) -> None:
        """Note that the order of units on these axes may depend on one another's only."""
        if axes:
            self.dependences.append((axes, []))

    def mix(self, axes: Axes, dims: Sequence[int], why: str) -> Axes:
        """Note that places along some axes are told apart and mixed: these are pinned; returns the other axes.

        What comes out at a place is made of several, so that the order of the others cannot depend on it.
        """
        for d in dims:
            pin(axes[d], why)
        others = [axis for d, axis in enumerate(axes) if d not in dims]
        self.apart(others)
        return others


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Enter a function for operations of these names, some in one text, without a trailing underscore.

    Those that are not of ATen have their library in front, as in ``torchvision::nms``.

    It is called with the site and the operation's arguments under their names in the schema, axes in the
    place of tensors, and returns the axes of the outputs: those of one tensor stand for all outputs.
    """

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(" ".join(names).split(), function))
        return function

    return enter


def dimensions(dim: Any, rank: int) -> list[int]:
    """Dimensions as numbers from 0; None and an empty list are all of them."""
    if dim is None or dim == ():
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)]


def tensors(arguments: Mapping[str, Any]) -> list[Axes]:
    """Those of an operation's arguments that are tensors, in their order."""
    return [value for value in arguments.values() if is_axes(value)]
