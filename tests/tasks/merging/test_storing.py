"""The run that a merge leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from roundweave.flows.stored import open_run
from roundweave.storage.rounds.commits import Score
from roundweave.storage.values.digests import match_digest
from roundweave.storage.values.state import Match
from roundweave.tasks.matching.search.matches import Evidence, match_all, match_each
from roundweave.tasks.merging.gallery import Gallery
from roundweave.tasks.merging.storing import merge_layout, persist_merge
from tests.tasks.merging.by_hand import TENSORS, same_bits


def kept(gallery: Gallery, states: list[TENSORS], orders: list[TENSORS], path: Path) -> list[TENSORS]:
    """Keep a merge whose merged network is the last of the aligned ones; gives all aligned ones."""
    units = gallery.units
    aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
    matches = [
        Match(order, units.similarity(aligned[0], state)) for order, state in zip(orders, aligned, strict=True)
    ]
    layout = merge_layout(gallery.objective.model.build())
    attributes = {"config": {"algorithm": {"name": "merge"}}, "created": 1.0}
    persist_merge(path, layout, states, matches, aligned[-1], attributes, Score(0.5, {"accuracy": 0.25}, 8))
    return aligned


@pytest.mark.parametrize("model", ["mlp", "normed", "counted"])
def test_the_stored_permutations_lead_to_the_aligned_networks_and_back(gallery, written, tmp_path, model) -> None:
    gallery = gallery(model)
    states, _ = written(gallery, 3)
    orders = match_all(Evidence(states, gallery.units))
    aligned = kept(gallery, states, orders, tmp_path / "runs" / "kept.zarr")
    run, network = open_run("kept"), gallery.objective.model.build()
    assert (run.status, run.done, run.partitions) == ("complete", 1, 3)
    assert run.round(1).score == Score(0.5, {"accuracy": 0.25}, 8)
    for number, state in enumerate(states):
        stored = run.round(1).match(number).permutation
        assert same_bits(dict(gallery.units.permute(state, stored)), aligned[number])
        assert same_bits(dict(gallery.units.permute(aligned[number], gallery.units.invert(stored))), state)
        for name in run.round(1).params:
            direction = run.round(1).updates[name].values[number]
            assert direction.tolist() == (states[0][name] - state[name]).tolist()
    assert any(not torch.equal(t, gallery.units.identity()[name]) for name, t in orders[1].items())
    for done, wanted in ((0, states[0]), (1, aligned[-1])):
        assert same_bits(dict(run.round(done).load_into(network).state_dict()), wanted)


def test_a_mixture_is_kept_as_a_matrix(gallery, written, tmp_path) -> None:
    gallery = gallery()
    states, _ = written(gallery)
    aligned = kept(gallery, states, match_each(Evidence(states, gallery.units), 2, 0.1), tmp_path / "soft.zarr")
    round = open_run(tmp_path / "soft.zarr").round(1)
    matrix = round.match(1).permutation["fc1"]
    assert (matrix > 0).sum(1).tolist() == [2] * 8
    torch.testing.assert_close(matrix.sum(1), torch.ones(8))
    assert same_bits(dict(gallery.units.permute(states[1], round.match(1).permutation)), aligned[1])
    assert round.commit.updates[1].match == match_digest(round.match(1))
