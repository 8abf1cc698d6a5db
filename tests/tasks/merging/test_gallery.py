"""Networks are read as they are now, in the types of the network."""

from __future__ import annotations

from dataclasses import replace

import torch

from storage.checkpoints.writing import write_checkpoint
from storage.runs.checkpoints import fitted
from tasks.merging.gallery import Blend, blended
from tests.tasks.merging.by_hand import same_bits


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


def test_tensors_are_fitted_to_the_network(gallery) -> None:
    network = gallery("normed").objective.model.build()
    state = network.state_dict()
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    del half["1.num_batches_tracked"]
    found = fitted(half, state)
    assert [(n, t.dtype) for n, t in found.items()] == [(n, t.dtype) for n, t in state.items()]
    assert torch.equal(found["0.weight"], state["0.weight"].half().float())
