"""Law of `--keep recompute:k`: a round that is mapped again has the bits of a run that stores everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import RoundPruned
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import match_tensors, update_tensors
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.rounds.persistence import outcomes
from tests.rows import but_first
from tests.tasks.rounds.persistence.conftest import SMALL, stored_states

FEW = "recompute:4"


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        np.array_equal(some[name].numpy(), others[name].numpy(), equal_nan=some[name].is_floating_point())
        for name in some
    )


def assert_same_rounds(run: rw.Run, whole: rw.Run, rounds: list[int]) -> None:
    """Both have the same states, updates, matches and carries, which `whole` has stored."""
    run, whole = rw.open_run(run.path), rw.open_run(whole.path)
    for round in rounds:
        one, other = run.round(round), whole.round(round)
        assert same(one.named, other.named)
        assert one.commit.updates.keys() == other.commit.updates.keys()
        for partition, record in other.commit.updates.items():
            if not record.raised:
                updates = (update_tensors(each.update(partition), each.layout) for each in (one, other))
                assert same(*updates), (round, partition)
            if record.match is not None:
                assert same(*(match_tensors(each.match(partition)) for each in (one, other)))
    assert rw.diff(run, whole).equal


KINDS: dict[str, dict[str, Any]] = {
    "averaged": {"algorithm": "fed_avg", "local_steps": 2, "outer_momentum": 0.9},
    "stepped": {"algorithm": "sync_sgd"},
    "adaptive": {"algorithm": "fed_adam", "local_steps": 2, "evaluate_every": 3},
    "carried": {"algorithm": "scaffold", "local_steps": 2, "cohort": 2},
    "carried state": {"algorithm": "fed_avg", "local_steps": 2, "optimizer_state": "carried", "momentum": 0.9},
    "compressed": {"algorithm": "fed_avg", "local_steps": 2, "compress": "top_k:0.1"},
    "neighbours": {"topology": "ring", "local_steps": 2},
    "matched": {"algorithm": "matched", "local_steps": 2},
    "split anew": {"algorithm": "fed_avg", "local_steps": 1, "resplit_every": 3},
    "stacked": {"algorithm": "fed_avg", "local_steps": 2, "stacked": 3},
    "served": {"algorithm": "async_sgd"},
    "served from far": {"algorithm": "async_sgd", "speeds": (1.0, 1.0, 0.12)},
    "served with a carry": {"algorithm": "easgd"},
    "served a cohort": {"algorithm": "async_sgd", "partitions": 5, "cohort": 2},
    "buffered": {"algorithm": "fed_buff", "local_steps": 2},
}


FIRST = ("carried", "split anew", "served from far", "buffered")
"""What partitions keep over rounds without them, another split, states of long ago, several versions."""


@pytest.mark.parametrize("kind", but_first(FIRST, KINDS))
def test_rounds_that_are_mapped_again_have_the_bits_that_were_stored(train, kind: str) -> None:
    fields = SMALL | KINDS[kind] | {"rounds": 13}
    whole, run = (train(window=5, **fields, keep=keep, name=keep[:3]) for keep in ("all", FEW))
    assert run.digest == whole.digest
    assert stored_states(run) == [0, 4, 8, 12, 13]
    assert not any(run.absent.has_update(round) for round in range(1, 14))
    assert verify(run.path).sound
    assert_same_rounds(run, whole, [6, 13, 3, 9, 12, 1])
    assert rw.open_run(run.path).replay("all").identical
    assert [each.digest for each in rw.open_run(run.path).recombine(7).rounds] == [whole.round(7).commit.state]


@pytest.mark.parametrize("kind", but_first(["carried"], ["served with a carry", "neighbours"]))
def test_a_run_that_is_cut_in_the_middle_of_an_interval_goes_on_to_the_same_bits(train, cut_short, kind) -> None:
    fields = SMALL | KINDS[kind] | {"rounds": 13}
    whole = train(window=5, **fields, keep="all", name="whole")
    for committed in (3, 7, 10):
        cut_short(committed, **fields, keep=FEW, name="cut")
    run = train(window=5, **fields, keep=FEW, name="cut")
    assert run.digest == whole.digest
    assert verify(run.path).sound
    assert_same_rounds(run, whole, [11, 2, 7])


MADE = but_first([("carried", GraphExecutor)], ["carried", "matched"], [GraphExecutor, RanksExecutor])


@pytest.mark.parametrize(("kind", "made"), MADE)
def test_on_a_cluster_the_same_states_are_stored_and_made_again(train, client, kind: str, made) -> None:
    fields = SMALL | KINDS[kind] | {"rounds": 9}
    whole = train(window=9, **fields, keep="all", name="whole")
    run = train(made(client), 9, **fields, keep=FEW, name="run")
    assert (run.digest, stored_states(run)) == (whole.digest, [0, 4, 8, 9])
    assert_same_rounds(run, whole, [2, 7])


def test_what_is_said_to_be_computed_again_is_what_is_computed(train, capsys) -> None:
    """Rounds that this process remembers are not."""
    run = rw.open_run(train(window=9, **SMALL, local_steps=1, rounds=4, keep=FEW, name="run").path)
    capsys.readouterr()
    for round, named in ((2, "round 1 to 2 of"), (3, "round 3 of"), (1, "round 1 of")):
        run.round(round).params  # noqa: B018 - it is computed when it is read
        assert named in capsys.readouterr().err
    rw.open_run(run.path).round(1).params  # noqa: B018
    assert capsys.readouterr().err == ""


def test_who_computes_without_gradients_gets_the_round_too(train) -> None:
    run = train(window=3, **SMALL, local_steps=1, rounds=3, keep=FEW, name="run")
    with torch.inference_mode():
        named = rw.open_run(run.path).round(2).named
    outcomes.REMEMBERED.clear()
    assert same(rw.open_run(run.path).round(2).named, named)


def test_one_line_says_that_the_data_are_others_or_gone(train, tmp_path) -> None:
    data = np.random.default_rng(0)
    inputs, labels = data.normal(size=(60, 4)).astype("float32"), data.integers(0, 2, 60)
    np.savez(tmp_path / "some.npz", inputs=inputs, targets=labels)
    fields = {**SMALL, "data": f"npz:{tmp_path / 'some.npz'}", "local_steps": 1, "rounds": 3, "keep": FEW}
    run = train(window=3, **fields, name="run")
    assert rw.open_run(run.path).round(2).params
    np.savez(tmp_path / "some.npz", inputs=inputs[::-1], targets=labels)
    outcomes.REMEMBERED.clear()
    says = r"round 2 of .* is not stored, and cannot be computed again: .*other examples"
    with pytest.raises(RoundPruned, match=says):
        rw.open_run(run.path).round(2).params  # noqa: B018
    (tmp_path / "some.npz").unlink()
    with pytest.raises(RoundPruned, match=r"cannot be computed again: .*some\.npz.*--data"):
        rw.open_run(run.path).round(2).params  # noqa: B018
    np.savez(tmp_path / "moved.npz", inputs=inputs, targets=labels)
    assert rw.open_run(run.path, data=f"npz:{tmp_path / 'moved.npz'}").round(2).params


def test_another_result_than_the_record_names_the_round_and_what_is_not_as_recorded(train) -> None:
    run = train(window=3, **SMALL, rounds=3, keep=FEW, name="run")
    assert rw.open_run(run.path).round(2).params
    outcomes.REMEMBERED.clear()
    state = RoundStore(run.path).tensors.read_state(0)
    state.params["float32"][0] += 1
    RoundStore(run.path).tensors.write_state(state)
    says = r"round 2 of .* cannot be computed again: .*round 0 is not what was committed"
    with pytest.raises(RoundPruned, match=says):
        rw.open_run(run.path).round(2).params  # noqa: B018


def test_a_flipped_bit_of_a_stored_state_is_named_when_a_round_is_made_of_it(train, flip) -> None:
    run = train(window=9, **SMALL, local_steps=1, rounds=9, keep=FEW, name="run")
    flip(Path(run.path) / "params/fc1.weight/c/4/0/0", 9)
    with pytest.raises(RoundPruned, match=r"round 6 .* cannot be computed again: .*params/fc1\.weight"):
        rw.open_run(run.path).round(6).params  # noqa: B018
    assert rw.open_run(run.path).round(3).params
