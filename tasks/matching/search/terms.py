"""What is alike in two networks: terms of a sum over tensors, and over activations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from tasks.matching.groups import Group, Permutation, Piece, Tensors, UnitGroups, rearranged

Metric = Literal["l2", "cosine", "correlation"]
Labels = tuple[str | None, ...]
HERE = "·"
"""Stands for the group whose units are compared, on the one dimension where they are."""


class Term(Protocol):
    """A part of the similarity between a target and a source network, a label a dimension.

    A label is the group whose units stand there, None where there is no order to be found any more.
    """

    @property
    def labels(self) -> Labels:
        """The group on each dimension."""
        ...

    @property
    def informed(self) -> bool:
        """Whether a unit shows more of itself than a single number."""
        ...

    def marked(self, dim: int) -> Term:
        """The term with `HERE` on a dimension."""
        ...

    def settled(self, groups: Mapping[str, Group], permutation: Permutation) -> Term:
        """The term with the source's units of some groups in their new order, int64 (*sizes of parents, size)."""
        ...

    def unordered(self, keep: Collection[str]) -> Term:
        """The term without labels but those to keep, by what no order of the other units changes."""
        ...

    def at(self, group: str, target: int, source: int) -> Term:
        """The term of one target unit and one source unit of a group."""
        ...

    def scores(self) -> torch.Tensor:
        """Similarities (target units, source units) of the only label."""
        ...

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared norms (units,) of the only label's target and source units."""
        ...

    def value(self) -> tuple[float, float, float]:
        """Without labels: the similarity as all units stand, and both squared norms."""
        ...


@dataclass(frozen=True)
class WeightTerm:
    """Two networks' values of one tensor, (*units or places) each; their inner product is the similarity."""

    target: torch.Tensor
    source: torch.Tensor
    labels: Labels

    @property
    def informed(self) -> bool:
        """Whether there are dimensions without a label."""
        return None in self.labels

    def marked(self, dim: int) -> WeightTerm:
        """The same values."""
        return replace(self, labels=_marked(self.labels, dim))

    def settled(self, groups: Mapping[str, Group], permutation: Permutation) -> WeightTerm:
        """The source's units in their new order, int64 (*sizes of parents, size) for each group."""
        if not any(label in permutation for label in self.labels):
            return self
        source = rearranged(self.source, self.labels, groups, permutation)
        return replace(self, source=source, labels=tuple(None if n in permutation else n for n in self.labels))

    def unordered(self, keep: Collection[str]) -> WeightTerm:
        """Values along the other labels sorted by size."""
        kept = [d for d, label in enumerate(self.labels) if label is None or label in keep]
        open_dims = [d for d in range(len(self.labels)) if d not in kept]
        if not open_dims:
            return self
        target, source = (
            tensor.permute(*kept, *open_dims).flatten(len(kept)).sort(-1).values
            for tensor in (self.target, self.source)
        )
        return WeightTerm(target, source, (*(self.labels[d] for d in kept), None))

    def at(self, group: str, target: int, source: int) -> WeightTerm:
        """The part of each."""
        dim = self.labels.index(group)
        labels = (*self.labels[:dim], *self.labels[dim + 1 :])
        return WeightTerm(self.target.select(dim, target), self.source.select(dim, source), labels)

    def scores(self) -> torch.Tensor:
        """Inner products (target units, source units)."""
        return self._rows(self.target) @ self._rows(self.source).T

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared lengths (units,) of the target's and of the source's units."""
        return self._rows(self.target).square().sum(1), self._rows(self.source).square().sum(1)

    def value(self) -> tuple[float, float, float]:
        """The inner product, and both squared lengths."""
        target, source = self.target.reshape(-1), self.source.reshape(-1)
        return (target @ source).item(), (target @ target).item(), (source @ source).item()

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        (dim,) = (d for d, label in enumerate(self.labels) if label is not None)
        return tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1)


@dataclass(frozen=True)
class MomentTerm:
    """Normalised moments between units at work, (*target units, *source units), a label for each pair."""

    moments: torch.Tensor
    labels: Labels
    informed: bool = True

    def marked(self, dim: int) -> MomentTerm:
        """The same moments."""
        return replace(self, labels=_marked(self.labels, dim))

    def settled(self, groups: Mapping[str, Group], permutation: Permutation) -> MomentTerm:
        """The source's units in their new order, int64 (*sizes of parents, size), and paired with the target's."""
        if not any(label in permutation for label in self.labels):
            return self
        count = len(self.labels)
        moments = rearranged(self.moments, (*[None] * count, *self.labels), groups, permutation)
        kept = [d for d, label in enumerate(self.labels) if label not in permutation]
        source = [count + d if d in kept else d for d in range(count)]
        paired = torch.einsum(moments, [*range(count), *source], [*kept, *(count + d for d in kept)])
        return MomentTerm(paired, tuple(self.labels[d] for d in kept))

    def ordered(self, groups: Mapping[str, Group], permutation: Permutation) -> MomentTerm:
        """The moments with the target's units in another order, int64 (*sizes of parents, size) for each group."""
        count = len(self.labels)
        return replace(
            self, moments=rearranged(self.moments, (*self.labels, *[None] * count), groups, permutation)
        )

    def turned(self) -> MomentTerm:
        """Target and source exchanged."""
        count = len(self.labels)
        return replace(self, moments=self.moments.permute(*range(count, 2 * count), *range(count)))

    def unordered(self, keep: Collection[str]) -> MomentTerm:
        """Summed over the other labels: the moments of the units' sums."""
        count = len(self.labels)
        gone = [d for d, label in enumerate(self.labels) if label not in keep]
        if not gone:
            return self
        moments = self.moments.sum([*gone, *(count + d for d in gone)])
        return MomentTerm(moments, tuple(label for label in self.labels if label in keep))

    def at(self, group: str, target: int, source: int) -> MomentTerm:
        """The moments between two units."""
        dim, count = self.labels.index(group), len(self.labels)
        moments = self.moments.select(count + dim, source).select(dim, target)
        return MomentTerm(moments, (*self.labels[:dim], *self.labels[dim + 1 :]))

    def scores(self) -> torch.Tensor:
        """The moments themselves (target units, source units)."""
        return self.moments

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Each unit counts as one: ones (units,) twice."""
        return torch.ones(self.moments.shape[0]), torch.ones(self.moments.shape[0])

    def value(self) -> tuple[float, float, float]:
        """The moment that is left."""
        return self.moments.sum().item(), 1.0, 1.0


@dataclass(frozen=True)
class UnreadTerm:
    """A part of one tensor of two networks, named tensors of the same shapes, that is read when it is compared.

    Networks larger than memory allows twice may be read from their files, tensor by tensor.
    """

    networks: tuple[Tensors, Tensors]
    piece: Piece
    metric: Metric
    labels: Labels

    @property
    def informed(self) -> bool:
        """Whether there are dimensions without a label."""
        return None in self.labels

    def marked(self, dim: int) -> UnreadTerm:
        """The same part."""
        return replace(self, labels=_marked(self.labels, dim))

    def settled(self, groups: Mapping[str, Group], permutation: Permutation) -> WeightTerm:
        """The source's units in their new order, int64 (*sizes of parents, size) for each group."""
        return self.read().settled(groups, permutation)

    def unordered(self, keep: Collection[str]) -> WeightTerm:
        """Values along the other labels sorted by size."""
        return self.read().unordered(keep)

    def at(self, group: str, target: int, source: int) -> WeightTerm:
        """The part of each."""
        return self.read().at(group, target, source)

    def scores(self) -> torch.Tensor:
        """Inner products (target units, source units)."""
        return self.read().scores()

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared lengths (units,) of the target's and of the source's units."""
        return self.read().norms()

    def value(self) -> tuple[float, float, float]:
        """The inner product, and both squared lengths."""
        return self.read().value()

    def read(self) -> WeightTerm:
        """The values, (*units or places) each."""
        tensors = (network[self.piece.tensor] for network in self.networks)
        pair = [_comparable(self.piece.view(tensor.contiguous())) for tensor in tensors]
        if self.metric == "correlation" and pair[0].ndim > 1:
            pair = [values - values.mean() for values in pair]
        return WeightTerm(pair[0], pair[1], self.labels)


def _marked(labels: Labels, dim: int) -> Labels:
    return tuple(HERE if d == dim else label for d, label in enumerate(labels))


def weight_terms(target: Tensors, source: Tensors, units: UnitGroups, metric: Metric) -> list[Term]:
    """A term for each part of each parameter of two networks, named tensors of the same shapes.

    Running statistics are left out, since their scale is their own.
    """
    pieces = (piece for piece in units.pieces if piece.tensor not in units.statistics)
    return [UnreadTerm((target, source), piece, metric, piece.groups) for piece in pieces]


def _comparable(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
