"""What each rank has of a network's tensors: a share of the units of some layers, and all of the rest.

A tensor is cut along one axis at most. Shares are therefore copied out of whole tensors, and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import Specs, TensorSpec, Vectors, pack, views

Spans = tuple[tuple[int, int], ...]
"""Indices of an axis, ascending, as pairs of the first index and one after the last."""


def even(size: int, ranks: int) -> list[tuple[int, int]]:
    """Divide `size` indices evenly: the first index of each rank, and one after its last."""
    return list(pairwise(size * rank // ranks for rank in range(ranks + 1)))


@dataclass(frozen=True)
class Cut:
    """Which indices of an axis of a tensor each rank has. Several ranks may have the same index."""

    axis: int
    spans: tuple[Spans, ...]

    def size(self, rank: int) -> int:
        """How many indices a rank has."""
        return sum(last - first for first, last in self.spans[rank])

    def share(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A copy of a rank's part of a whole tensor, (*shape)."""
        parts = [tensor.narrow(self.axis, first, last - first) for first, last in self.spans[rank]]
        return torch.cat([tensor.narrow(self.axis, 0, 0), *parts], self.axis)

    def place(self, whole: torch.Tensor, part: torch.Tensor, rank: int) -> None:
        """Copy a rank's part into the whole tensor, (*shape), where it belongs."""
        at = 0
        for first, last in self.spans[rank]:
            whole.narrow(self.axis, first, last - first).copy_(part.narrow(self.axis, at, last - first))
            at += last - first

    def rows(self, first: int, end: int) -> Cut:
        """The cut of a tensor that consists of the rows from `first` to before `end` of this one."""
        if self.axis:
            return self
        within = (
            tuple((max(a, first) - first, min(b, end) - first) for a, b in spans if a < end and b > first)
            for spans in self.spans
        )
        return Cut(0, tuple(within))

    def rows_of(self, rank: int, first: int, end: int) -> tuple[int, int]:
        """Where the rows from `first` to before `end` of the whole tensor are in a rank's part."""
        if self.axis:
            return first, end
        return self.rows(0, first).size(rank), self.rows(0, end).size(rank)


@dataclass(frozen=True)
class Count:
    """An integer attribute of a module that counts units, such as heads, and its value on each rank."""

    module: str
    attribute: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """How `ranks` ranks share a network with this `layout`.

    `cuts` has the cut of each tensor that is divided, by name. `column`, `row`, `heads` and `sliced` are names of
    modules: `column` modules take inputs that all ranks have, and compute each rank's units; `row` modules take
    these units, and sum their outputs over the ranks; `heads` are attention, and do both; `sliced` modules take
    each rank's slice of inputs that all ranks have, and sum their outputs. `counts` are attributes that differ
    between ranks, and `units` the names of the unit groups that are divided.

    If `joins` names a module, the first of `column`, ranks divide the batch before it and have the whole batch
    from it on; `before` names the parameters before it. If it is None, all ranks always have the whole batch.
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
        """Where each tensor of a rank's part lies in its vectors."""
        whole = self.layout
        params, buffers, frozen = (self._specs(s, rank) for s in (whole.params, whole.buffers, whole.frozen))
        return replace(whole, params=params, buffers=buffers, frozen=frozen)

    def first(self, module: str, rank: int) -> int:
        """The first index that a rank has of the cut axis of a layer's weight."""
        name = f"{module}.weight".removeprefix(".")
        cut = self.cuts[name if name in self.cuts else f"{module}.out_proj.weight".removeprefix(".")]
        return cut.spans[rank][0][0]

    def share(self, name: str, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's part of a whole tensor, (*shape); the tensor itself if it is not cut."""
        cut = self.cuts.get(name)
        return tensor if cut is None else cut.share(tensor, rank)

    def state(self, state: State, rank: int) -> State:
        """A rank's part of the state of the whole network."""
        return replace(
            state,
            params=self.vectors(self.layout.params, state.params, rank),
            buffers=self.vectors(self.layout.buffers, state.buffers, rank),
            frozen=self.vectors(self.layout.frozen, state.frozen, rank),
            memory=self.slots(state.memory, rank),
        )

    def slots(self, slots: Mapping[str, Vectors], rank: int) -> dict[str, Vectors]:
        """A rank's part of vectors, (element,) by slot and dtype, that have the layout of the parameters."""
        return {slot: self.vectors(self.layout.params, vectors, rank) for slot, vectors in slots.items()}

    def vectors(self, specs: Specs, vectors: Vectors, rank: int) -> Vectors:
        """A rank's part of vectors, (element,) by dtype, that hold the whole tensors of `specs`."""
        if not vectors:
            return {}
        shares = {name: self.share(name, tensor, rank) for name, tensor in views(specs, vectors).items()}
        return pack(specs, shares)

    def joined(self, parts: Sequence[Update]) -> Update:
        """Put the update of the whole network together from those of all ranks.

        Weight and metrics are those of rank 0.
        """
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
        """Put whole vectors, (element,) by dtype, together from those of all ranks."""
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
        """The name, dtype and shape of a rank's part of a tensor."""
        cut = self.cuts.get(spec.name)
        if cut is None:
            return spec
        shape = (*spec.shape[: cut.axis], cut.size(rank), *spec.shape[cut.axis + 1 :])
        return replace(spec, shape=shape)
