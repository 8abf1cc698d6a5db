"""The table of rules: what an operation does to the layouts of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.matching.layouts import Axis, Layout

Result = Layout | tuple[Layout | None, ...] | None
Rule = Callable[..., Result]
Contraction = tuple[list[Axis], Layout]
"""Axes that are summed over together, and the axes that tell one such sum from another."""


class Unknown(Exception):
    """The operation, as it is used here, has no rule."""


@dataclass
class Site:
    """Where an operation stands in the graph: its name, the shapes of its outputs, what it leads to.

    `contractions` collects which axes are summed over, and which other axes tell one sum from another.
    `used` holds the indices of a tuple's outputs that anybody uses, `uniform` the identities of layouts of constants
    whose elements are all alike.
    """

    name: str
    shapes: Sequence[Sequence[int]]
    used: frozenset[int] = frozenset()
    uniform: frozenset[int] = frozenset()
    contractions: list[Contraction] = field(default_factory=list)

    @property
    def shape(self) -> list[int]:
        """The shape of the only, or the first, output."""
        return list(self.shapes[0])

    def contract(self, axes: list[Axis], batch: Layout) -> None:
        """Note a sum over some axes, one for each index of the others."""
        self.contractions.append((axes, batch))


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function for operations of these names (of ATen, without a trailing underscore).

    It is called with the site and the operation's arguments under their names in the schema, layouts in the
    place of tensors, and returns the layouts of the outputs.
    """

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def dimensions(dim: Any, rank: int) -> list[int]:
    """Dimensions as numbers from 0; None and an empty list are all of them."""
    if dim is None or dim == ():
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)]
