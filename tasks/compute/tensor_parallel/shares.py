"""What each rank has of a network's tensors: a share of the units of some layers, and all of the rest.

A tensor is cut along one axis at most, so whole tensors and shares are made of each other by copying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from storage.values.layout import Layout
from storage.values.state import State, Update
from storage.values.tensors import Specs, TensorSpec, Vectors, pack, views

Spans = tuple[tuple[int, int], ...]
"""Indices of an axis, ascending: from the first of each span to before its second."""


def even(size: int, ranks: int) -> list[tuple[int, int]]:
    """So many indices in equal shares: the first of each rank's, and one after its last."""
    return list(pairwise(size * rank // ranks for rank in range(ranks + 1)))


@dataclass(frozen=True)
class Cut:
    """Which indices of an axis of a tensor each rank has; some may be with all of them."""

    axis: int
    spans: tuple[Spans, ...]

    def size(self, rank: int) -> int:
        """How many of the indices a rank has."""
        return sum(last - first for first, last in self.spans[rank])

    def share(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of a whole tensor, (*shape), in memory of its own."""
        parts = [tensor.narrow(self.axis, first, last - first) for first, last in self.spans[rank]]
        return torch.cat([tensor.narrow(self.axis, 0, 0), *parts], self.axis)

    def place(self, whole: torch.Tensor, part: torch.Tensor, rank: int) -> None:
        """Copy a rank's part to where it belongs in a whole tensor, (*shape)."""
        at = 0
        for first, last in self.spans[rank]:
            whole.narrow(self.axis, first, last - first).copy_(part.narrow(self.axis, at, last - first))
            at += last - first

    def rows(self, first: int, end: int) -> Cut:
        """The cut of these rows of the tensor, (rows, *), alone."""
        if self.axis:
            return self
        within = (
            tuple((max(a, first) - first, min(b, end) - first) for a, b in spans if a < end and b > first)
            for spans in self.spans
        )
        return Cut(0, tuple(within))

    def rows_of(self, rank: int, first: int, end: int) -> tuple[int, int]:
        """Where these rows of the whole tensor are in a rank's part."""
        if self.axis:
            return first, end
        return self.rows(0, first).size(rank), self.rows(0, end).size(rank)


@dataclass(frozen=True)
class Count:
    """An integer attribute of a module that counts units, such as heads, and what it is on each rank."""

    module: str
    attribute: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """How a network of a `layout` is shared by so many ranks.

    `cuts` are by the tensor's name. The modules `into` begin with inputs that all ranks have and give each rank
    its units; those `out` give sums over all units. The modules `heads` are attention and do both; those `sliced`
    take each rank's slice of inputs that all ranks have, and give sums. From the module `joins` on, the first of
    those `into`, the ranks have the whole batch, and before it each has a share of the examples; None where they
    always have it.
    """

    ranks: int
    layout: Layout
    cuts: Mapping[str, Cut]
    column: tuple[str, ...]
    row: tuple[str, ...]
    heads: tuple[str, ...] = ()
    sliced: tuple[str, ...] = ()
    counts: tuple[Count, ...] = ()
    units: tuple[str, ...] = ()
    joins: str | None = None
    before: frozenset[str] = field(default_factory=frozenset)

    def layout_of(self, rank: int) -> Layout:
        """Where each tensor lies in a rank's vectors."""
        whole = self.layout
        params, buffers, frozen = (self._specs(s, rank) for s in (whole.params, whole.buffers, whole.frozen))
        return replace(whole, params=params, buffers=buffers, frozen=frozen)

    def first(self, module: str, rank: int) -> int:
        """The first index that a rank has of the weight of a layer with shares."""
        name = f"{module}.weight".removeprefix(".")
        cut = self.cuts[name if name in self.cuts else f"{module}.out_proj.weight".removeprefix(".")]
        return cut.spans[rank][0][0]

    def share(self, name: str, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of a whole tensor, (*shape); the tensor itself where all have it."""
        cut = self.cuts.get(name)
        return tensor if cut is None else cut.share(tensor, rank)

    def state(self, state: State, rank: int) -> State:
        """A rank's part of a whole state."""
        return replace(
            state,
            params=self.vectors(self.layout.params, state.params, rank),
            buffers=self.vectors(self.layout.buffers, state.buffers, rank),
            frozen=self.vectors(self.layout.frozen, state.frozen, rank),
            memory=self.slots(state.memory, rank),
        )

    def slots(self, slots: Mapping[str, Vectors], rank: int) -> dict[str, Vectors]:
        """A rank's part of vectors (element,) that are shaped as the parameters."""
        return {slot: self.vectors(self.layout.params, vectors, rank) for slot, vectors in slots.items()}

    def vectors(self, specs: Specs, vectors: Vectors, rank: int) -> Vectors:
        """A rank's part of vectors (element,) of whole tensors."""
        if not vectors:
            return {}
        shares = {name: self.share(name, tensor, rank) for name, tensor in views(specs, vectors).items()}
        return pack(specs, shares)

    def joined(self, parts: Sequence[Update]) -> Update:
        """The update of the whole network from those of all ranks; what is not a tensor is the first one's."""
        first = parts[0]
        params = self.layout.params
        return replace(
            first,
            direction=self._joined(params, [part.direction for part in parts]),
            buffers=self._joined(self.layout.buffers, [part.buffers for part in parts]),
            extras={name: self._joined(params, [part.extras[name] for part in parts]) for name in first.extras},
            carry={slot: self._joined(params, [part.carry[slot] for part in parts]) for slot in first.carry},
        )

    def _joined(self, specs: Specs, parts: Sequence[Vectors]) -> Vectors:
        """Whole vectors (element,) from those of all ranks."""
        if not parts[0]:
            return {}
        named = [views(self._specs(specs, rank), part) for rank, part in enumerate(parts)]
        return pack(specs, {spec.name: self._whole(spec, [part[spec.name] for part in named]) for spec in specs})

    def _whole(self, spec: TensorSpec, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        cut = self.cuts.get(spec.name)
        if cut is None:
            return parts[0]
        whole = parts[0].new_empty(spec.shape)
        for rank, part in enumerate(parts):
            cut.place(whole, part, rank)
        return whole

    def _specs(self, specs: Specs, rank: int) -> tuple[TensorSpec, ...]:
        return tuple(self.spec(spec, rank) for spec in specs)

    def spec(self, spec: TensorSpec, rank: int) -> TensorSpec:
        """A tensor as a rank has it."""
        cut = self.cuts.get(spec.name)
        if cut is None:
            return spec
        shape = (*spec.shape[: cut.axis], cut.size(rank), *spec.shape[cut.axis + 1 :])
        return replace(spec, shape=shape)
