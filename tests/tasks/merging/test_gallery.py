"""What workers do with the networks of a merge: blends and ensembles against plain evaluations, activations."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.tasks.matching.search.activations import activation_moments, summed
from roundweave.tasks.merging.gallery import Blend, Ensemble, blended, observe
from tests.tasks.merging.by_hand import same_bits


class Constant(nn.Module):
    """Gives the same outputs for every example."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(len(inputs), -1)


def test_an_ensemble_has_the_classes_where_the_loss_has_them() -> None:
    # Three classes at each of two places, (examples, classes, places).
    values = ((8.0, 1.0, 1.0, 1.0, 1.0, 8.0), (1.0, 2.0, 8.0, 2.0, 1.0, 6.0))
    networks = [nn.Sequential(Constant(*map(math.log, each)), nn.Unflatten(1, (3, 2))) for each in values]
    found = Ensemble(networks, logits=True, axis=1)(torch.zeros(4, 1))
    torch.testing.assert_close(found[0].exp(), torch.tensor([[0.45, 0.15], [0.45, 0.15], [0.1, 0.7]]))


def test_an_ensemble_that_is_not_of_logits_gives_the_mean() -> None:
    found = Ensemble([Constant(1.0, -2.0), Constant(4.0, 2.0)], logits=False)(torch.zeros(2, 1))
    assert found.tolist() == [[2.5, 0.0]] * 2


def test_an_ensemble_survives_logits_that_overflow_an_exponential() -> None:
    found = Ensemble([Constant(1000.0, 0.0), Constant(1000.0, 0.0)], logits=True)(torch.zeros(1, 1))
    assert found.tolist() == [[0.0, -1000.0]]


# Networks are read as they are now.


def test_a_file_that_is_written_anew_is_read_anew(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    blend = Blend(places, (1, 0))
    assert same_bits(dict(blended(gallery, blend).state_dict()), states[0])
    other = {name: 2 * tensor for name, tensor in states[0].items()}
    write_checkpoint(places[0], other)
    assert same_bits(dict(blended(gallery, blend).state_dict()), other)


def test_a_run_that_went_on_is_read_anew(gallery, train) -> None:
    gallery = gallery()
    fields = {"data": gallery.partitions.source.code, "model_options": {"hidden": 8}, "name": "grows"}
    gallery = replace(gallery, root=train(rounds=1, **fields).path.parent)
    for rounds in (1, 2):
        run = train(rounds=rounds, **fields)
        found = dict(blended(gallery, Blend(("grows@-1",), (1.0,))).state_dict())
        assert same_bits(found, run.round(rounds).params)


# Activations on the workers.


def test_the_sum_over_blocks_is_one_pass_over_their_examples(gallery, written) -> None:
    gallery = gallery(examples=400, blocks=4, batch=25)
    states, places = written(gallery, 3)
    pairs = [(0, 1), (0, 2), (1, 2)]
    parts = summed([observe(gallery, places, pairs, block) for block in range(4)])
    inputs = torch.cat([gallery.inputs(block) for block in range(4)])
    whole = activation_moments(gallery.objective.model.build(), states, [inputs], gallery.units, pairs)
    assert parts.keys() == whole.keys() and whole
    for piece, moments in whole.items():
        assert parts[piece].samples == moments.samples == 400
        torch.testing.assert_close(parts[piece].sums, moments.sums, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(parts[piece].squares, moments.squares, rtol=1e-4, atol=1e-3)
        for pair in pairs:
            torch.testing.assert_close(parts[piece].products[pair], moments.products[pair], rtol=1e-4, atol=1e-3)


def test_a_block_with_too_few_examples_is_left_out(gallery, written) -> None:
    gallery = gallery(examples=99, blocks=4, batch=25)
    _, places = written(gallery)
    assert observe(gallery, places, [(0, 1)], 0) is None
    assert summed([None, None]) == {}
    enough = replace(gallery, examples=100)
    one = observe(enough, places, [(0, 1)], 0)
    assert summed([None, one, None]) == one
