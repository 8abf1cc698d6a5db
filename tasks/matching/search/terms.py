"""Terms whose sum is the similarity of two networks: one for each part of a tensor or place of activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

import torch

from roundweave.tasks.matching.groups import Permutation, Piece, Tensors, UnitGroup, UnitGroups, rearranged

Metric = Literal["l2", "cosine", "correlation"]
Labels = tuple[str | None, ...]
HERE = "·"
"""The label that marks the one dimension whose units are being compared."""


@dataclass(frozen=True)
class WeightTerm:
    """The values of one tensor in two networks, (*units or places) each; their inner product is the similarity.

    `labels` has for each dimension the group of its units, or None if their order is known or fixed. `read` gives
    the target's and the source's values; large networks are read from their files each time, to save memory. They
    may have a further dimension without a label, of real and imaginary parts.
    """

    read: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    labels: Labels

    def compared(self, metric: Metric) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Inner products (target units, source units) for a term with a single label, and squared lengths.

        The lengths (units,) are those of the target's and the source's units; there are none for l2.
        """
        target, source = map(self._rows, self.read())
        return target @ source.T, () if metric == "l2" else (target.square().sum(1), source.square().sum(1))

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        (dim,) = (d for d, label in enumerate(self.labels) if label is not None)
        return tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1)

    def settled(self, groups: Mapping[str, UnitGroup], permutation: Permutation) -> WeightTerm:
        """Return the term with the source's units permuted, by int64 (*sizes of parents, size) for each group."""
        if not any(label in permutation for label in self.labels):
            return self

        def read() -> tuple[torch.Tensor, torch.Tensor]:
            target, source = self.read()
            return target, rearranged(source, self.labels, groups, permutation)

        return WeightTerm(read, tuple(None if label in permutation else label for label in self.labels))

    def at(self, group: str, target: int, source: int) -> WeightTerm:
        """Return the term for a single target unit and a single source unit of a group."""
        dim = self.labels.index(group)
        of_target, of_source = self.read()
        labels = (*self.labels[:dim], *self.labels[dim + 1 :])
        return _held(of_target.select(dim, target), of_source.select(dim, source), labels)

    def value(self) -> tuple[float, float, float]:
        """Return the inner product of both networks in their present orders, and both squared lengths."""
        target, source = (values.reshape(-1) for values in self.read())
        return (target @ source).item(), (target @ target).item(), (source @ source).item()


@dataclass(frozen=True)
class MomentTerm:
    """Normalised moments between two networks' activations, (*target units, *source units).

    `labels` has a group for each pair of dimensions. The methods do the same as those of `WeightTerm`.
    """

    moments: torch.Tensor
    labels: Labels

    def compared(self, metric: Metric) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The moments themselves (target units, source units), and ones (units,), as these are normalised."""
        return self.moments, () if metric == "l2" else (torch.ones(self.moments.shape[0]),) * 2

    def settled(self, groups: Mapping[str, UnitGroup], permutation: Permutation) -> MomentTerm:
        """Return the term with the source's units permuted, by int64 (*sizes of parents, size), and paired."""
        if not any(label in permutation for label in self.labels):
            return self
        count = len(self.labels)
        moments = rearranged(self.moments, (*[None] * count, *self.labels), groups, permutation)
        kept = [d for d, label in enumerate(self.labels) if label not in permutation]
        source = [count + d if d in kept else d for d in range(count)]
        paired = torch.einsum(moments, [*range(count), *source], [*kept, *(count + d for d in kept)])
        return MomentTerm(paired, tuple(self.labels[d] for d in kept))

    def ordered(self, groups: Mapping[str, UnitGroup], permutation: Permutation) -> MomentTerm:
        """Return the term with the target's units permuted, by int64 (*sizes of parents, size) for each group."""
        dims = (*self.labels, *[None] * len(self.labels))
        return replace(self, moments=rearranged(self.moments, dims, groups, permutation))

    def at(self, group: str, target: int, source: int) -> MomentTerm:
        """Return the term for a single target unit and a single source unit of a group."""
        dim, count = self.labels.index(group), len(self.labels)
        moments = self.moments.select(count + dim, source).select(dim, target)
        return MomentTerm(moments, (*self.labels[:dim], *self.labels[dim + 1 :]))

    def value(self) -> tuple[float, float, float]:
        """Return the sum of the moments, and 1 for both squared lengths."""
        return self.moments.sum().item(), 1.0, 1.0


Term = WeightTerm | MomentTerm


def _held(target: torch.Tensor, source: torch.Tensor, labels: Labels) -> WeightTerm:
    return WeightTerm(lambda: (target, source), labels)


def united(terms: Sequence[Term]) -> list[Term]:
    """The terms with one for all weights of the same units, in memory side by side: few products, often read."""
    alike: dict[Labels, list[tuple[torch.Tensor, ...]]] = {}
    for term in terms:
        if isinstance(term, WeightTerm):
            dims = sorted((label, dim) for dim, label in enumerate(term.labels) if label is not None)
            labels, places = tuple(label for label, _ in dims), [dim for _, dim in dims]
            front = [values[..., None].movedim(places, [*range(len(places))]) for values in term.read()]
            alike.setdefault(labels, []).append(tuple(values.flatten(len(places)) for values in front))
    moments = [term for term in terms if isinstance(term, MomentTerm)]
    both = {labels: [torch.cat(each, -1) for each in zip(*pairs, strict=True)] for labels, pairs in alike.items()}
    return [*moments, *(_held(target, source, (*labels, None)) for labels, (target, source) in both.items())]


def mean_term(terms: Sequence[MomentTerm]) -> MomentTerm:
    """Return the mean of terms of the same labels."""
    return replace(terms[0], moments=torch.stack([term.moments for term in terms]).mean(0))


def weight_terms(
    target: Tensors, source: Tensors, units: UnitGroups, metric: Metric, pieces: Sequence[Piece] | None = None
) -> list[Term]:
    """A term for each piece, by default all, of the parameters of two networks: named tensors of the same shapes.

    Running statistics are left out, as their scale is different.
    """

    def read(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = piece.pair(target, source)
        if metric == "correlation" and len(piece.shape) > 1:
            units = [*range(len(piece.shape))]
            one, other = (values - values.mean(units, keepdim=True) for values in (one, other))
        return one, other

    chosen = [p for p in (units.pieces if pieces is None else pieces) if p.tensor not in units.statistics]
    return [WeightTerm(partial(read, piece), piece.groups) for piece in chosen]


def similarity(terms: Sequence[Term], metric: Metric) -> torch.Tensor:
    """Similarities (target units, source units) of the one group that all terms have.

    If there are terms of both weights and activations, it is the mean of their two similarities.
    """
    similarities = []
    for same in _by_kind(terms):
        # Each term is in memory only while it is compared, and they are added one after the other: the order of
        # torch.sum depends on how many there are and on the size, so that bits would, too.
        compared = ((product, *squares) for product, squares in (term.compared(metric) for term in same))
        total, *squares = reduce(lambda sums, each: tuple(map(torch.add, sums, each)), compared)
        if metric != "l2":
            target, source = (each.sqrt().clamp_min(1e-30) for each in squares)
            total = total / target[:, None] / source[None, :]
        similarities.append(total)
    return similarities[0] if len(similarities) == 1 else torch.stack(similarities).mean(0)


def overall(terms: Sequence[Term], metric: Metric) -> float:
    """Return how alike two networks are in their present orders.

    The mean if both weights and activations are compared.
    """
    similarities = []
    for same in _by_kind(terms):
        product, target, source = (sum(each) for each in zip(*(term.value() for term in same), strict=True))
        similarities.append(float(product if metric == "l2" else product / max((target * source) ** 0.5, 1e-30)))
    return sum(similarities) / max(len(similarities), 1)


def _by_kind(terms: Sequence[Term]) -> list[list[Term]]:
    kinds = [[term for term in terms if isinstance(term, kind)] for kind in (WeightTerm, MomentTerm)]
    return [same for same in kinds if same]
