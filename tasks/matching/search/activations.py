"""Compares units by their activations on examples, through moments that are summed batch by batch.

Comparing units by the cross-correlation of activations follows Li et al. 2016 and Git Re-Basin (Ainsworth et al.
2023, section 3.1). The memory needed is that of one batch and of units x units numbers for each place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from roundweave.tasks.matching.groups import Piece, Tensors, UnitGroups, as_real
from roundweave.tasks.matching.search.terms import Metric, MomentTerm
from roundweave.tasks.matching.tapping import Taps, first_batch, whole_batches
from roundweave.tasks.matching.tracing.exporting import Inputs, exported
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.matching.unofficial import tensors_in

Pair = tuple[int, int]
MASKED = 1e15
"""Values of this size, such as attention scores of masked places, say nothing about a unit and count as 0."""


@dataclass(frozen=True)
class Moments:
    """Sums over samples of the units' activations at one place, and of squares and products of their deviations.

    Deviations are from a unit's mean, as a variance would drown in the rounding of a large mean's square.
    `products[i, j]` is (units of i, units of j); `sums` and `squares` are float64 (network, unit), with units
    flattened.
    """

    products: Mapping[Pair, torch.Tensor]
    sums: torch.Tensor
    squares: torch.Tensor
    samples: int

    @property
    def means(self) -> torch.Tensor:
        """The mean activations, float64 (network, unit)."""
        return self.sums / self.samples

    def __add__(self, other: Moments) -> Moments:
        """The moments of both's samples, by the pairwise update of Chan, Golub and LeVeque 1983."""
        samples, apart = self.samples + other.samples, other.means - self.means
        shift = self.samples * other.samples / samples * apart
        products = {
            (i, j): product + other.products[i, j] + torch.outer(shift[i], apart[j]).to(product.dtype)
            for (i, j), product in self.products.items()
        }
        squares = self.squares + other.squares + shift * apart
        return Moments(products, self.sums + other.sums, squares, samples)

    def normalised(self, pair: Pair, metric: Metric) -> torch.Tensor:
        """The correlations, cosines or, for l2, mean products of a pair: (units of one, units of the other)."""
        product, squares = self.products[pair] / self.samples, self.squares / self.samples
        if metric != "correlation":
            product = product + torch.outer(*self.means[list(pair)]).to(product.dtype)
            squares = squares + self.means.square()
        if metric == "l2":
            return product
        lengths = squares.sqrt().to(product.dtype)
        lengths = torch.where(lengths > 1e-12, lengths, torch.inf)  # a constant unit has similarity 0 to all
        return product / lengths[pair[0]][:, None] / lengths[pair[1]][None, :]


def activation_moments(
    model: nn.Module, states: Sequence[Tensors], inputs: Inputs, units: UnitGroups, pairs: Sequence[Pair]
) -> dict[Piece, Moments]:
    """Return the moments of several networks on the same examples, at each place where units go into a sum.

    `states` are named tensors of the network's shapes, `inputs` the examples' tensors (examples, …). Batches have
    `units.batch` examples, with which the network was traced; examples left over at the end are not used. Raises
    `UsageError` if there are fewer examples than that.
    """
    first = first_batch(inputs, units.batch)
    known = _known_taps(model, first, units)
    places = [piece for piece in known if len(set(_labels(piece))) == len(_labels(piece))]
    taps = Taps.at(exported(model, first), list(dict.fromkeys(piece.tensor for piece in places)))

    def observed(batch: Sequence[torch.Tensor]) -> dict[Piece, Moments]:
        each = [taps.values(state, batch) for state in states]
        return {known[p]: _moments([_samples(p, value[p.tensor]) for value in each], pairs) for p in places}

    return summed(map(observed, whole_batches(inputs, units.batch)))


def _known_taps(model: nn.Module, inputs: Inputs, units: UnitGroups) -> dict[Piece, Piece]:
    """The pieces that show units at work for inputs of these shapes, each with the one of `units` that it is.

    Texts that are padded to another length than those with which the network was traced lie otherwise in memory.
    """
    if tuple(tuple(tensor.shape) for tensor in tensors_in(inputs)) == units.inputs:
        return {piece: piece for piece in units.taps}
    found = units.left(find_units(model, inputs).taps)
    alike = [*map(_labels, found)] == [*map(_labels, units.taps)]
    return dict(zip(found, units.taps if alike else found, strict=True))


def summed(parts: Iterable[Mapping[Piece, Moments] | None]) -> dict[Piece, Moments]:
    """Return the sum of moments of several batches or blocks, with one of them in memory at a time.

    None is skipped.
    """
    total: dict[Piece, Moments] = {}
    for part in parts:
        for piece, moments in (part or {}).items():
            total[piece] = total[piece] + moments if piece in total else moments
    return total


def _labels(piece: Piece) -> tuple[str, ...]:
    return tuple(label for label in piece.groups if label is not None)


def _samples(piece: Piece, value: torch.Tensor) -> torch.Tensor:
    """Return the values at a piece as (sample, unit), with units flattened in the order of the piece's groups.

    The real and the imaginary part of a complex value are two samples.
    """
    view = as_real(piece.view(value.contiguous()))
    view = torch.where(view.abs() < MASKED, view, 0.0)
    labelled = [dim for dim, label in enumerate(piece.groups) if label is not None]
    rest = [dim for dim in range(view.ndim) if dim not in labelled]
    return view.permute(*rest, *labelled).reshape(-1, math.prod(view.shape[dim] for dim in labelled))


def _moments(samples: Sequence[torch.Tensor], pairs: Sequence[Pair]) -> Moments:
    sums = torch.stack([one.sum(0, dtype=torch.float64) for one in samples])
    apart = [one - mean.to(one.dtype) for one, mean in zip(samples, sums / len(samples[0]), strict=True)]
    return Moments(
        products={(i, j): apart[i].T @ apart[j] for i, j in pairs},
        sums=sums,
        squares=torch.stack([one.square().sum(0, dtype=torch.float64) for one in apart]),
        samples=len(samples[0]),
    )


def moment_terms(moments: Mapping[Piece, Moments], pair: Pair, metric: Metric) -> list[MomentTerm]:
    """Return a term for each place; `pair` is (target, source), in any order of their numbers."""
    terms = []
    for piece, measured in moments.items():
        shape = [size for size, label in zip(piece.shape, piece.groups, strict=True) if label is not None]
        values = measured.normalised((min(pair), max(pair)), metric).reshape(*shape, *shape)
        if pair[0] > pair[1]:
            values = values.permute(*range(len(shape), 2 * len(shape)), *range(len(shape)))
        terms.append(MomentTerm(values, _labels(piece)))
    return terms
