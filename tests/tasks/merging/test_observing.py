"""Activations on the workers: the sum over blocks is one pass, and by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from tasks.matching.search.activations import activation_moments, summed
from tasks.merging.gallery import observe


def test_the_sum_over_blocks_is_one_pass_over_their_examples(gallery, written) -> None:
    gallery = gallery(examples=400, blocks=4, batch=25)
    states, places = written(gallery, 3)
    pairs = [(0, 1), (0, 2), (1, 2)]
    parts = summed([observe(gallery, places, pairs, block) for block in range(4)])
    inputs = torch.cat([gallery.partitions.load(0, block).train.inputs[:100] for block in range(4)])
    whole = activation_moments(gallery.objective.model.build(), states, [inputs], gallery.units, pairs)
    assert parts.keys() == whole.keys() and whole
    for piece, moments in whole.items():
        assert parts[piece].samples == moments.samples == 400
        torch.testing.assert_close(parts[piece].sums, moments.sums, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(parts[piece].squares, moments.squares, rtol=1e-4, atol=1e-3)
        for pair in pairs:
            torch.testing.assert_close(parts[piece].products[pair], moments.products[pair], rtol=1e-4, atol=1e-3)


def test_the_moments_of_a_hidden_layer_by_hand(gallery, written) -> None:
    gallery = gallery(examples=50, blocks=1, batch=25)
    states, places = written(gallery)
    (found,) = [
        moments
        for piece, moments in summed([observe(gallery, places, [(0, 1)], 0)]).items()
        if moments.sums.shape == (2, 8)
    ][:1]
    inputs = gallery.partitions.load(0, 0).train.inputs[:50]
    before = [inputs @ state["fc1.weight"].T + state["fc1.bias"] for state in states]
    candidates = [before, [one.relu() for one in before]]
    assert any(torch.allclose(found.sums, torch.stack([o.sum(0) for o in c]), atol=1e-3) for c in candidates)
    assert any(torch.allclose(found.products[0, 1], c[0].T @ c[1], atol=1e-3) for c in candidates)


def test_a_block_with_too_few_examples_is_left_out(gallery, written) -> None:
    gallery = gallery(examples=99, blocks=4, batch=25)
    _, places = written(gallery)
    assert observe(gallery, places, [(0, 1)], 0) is None
    assert summed([None, None]) == {}
    enough = replace(gallery, examples=100)
    one = observe(enough, places, [(0, 1)], 0)
    assert summed([None, one, None]) == one
