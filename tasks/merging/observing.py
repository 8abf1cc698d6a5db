"""Activations of the networks that are merged."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.matching.groups import Piece
from tasks.matching.search.activations import Moments, Pair, activation_moments
from tasks.merging.gallery import Gallery
from tasks.numerics import pinned


def observe(
    gallery: Gallery, places: Sequence[str], pairs: Sequence[Pair], block: int
) -> dict[Piece, Moments] | None:
    """The moments of the networks' units on a block's share of the examples, None where that is too small."""
    inputs = gallery.inputs(block)
    if len(inputs) < gallery.units.batch:
        return None
    with pinned(0, threads=1):
        states = [gallery.read(place) for place in places]
        network = gallery.objective.model.build()
        return activation_moments(network, states, [inputs], gallery.units, pairs)
