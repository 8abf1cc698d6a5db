"""Who takes part in a round: drawn from seed and round, without replacement; nobody else's data are read."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import roundweave as rw
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.cohort.sampler import Cohort
from roundweave.flows.plugins.score_partitions.scorer import OwnExamples
from roundweave.storage.errors import DataError, RoundFailed
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.rounds.job import asked_of
from roundweave.tasks.rounds.scoring import Tally

SOURCE = """
from pathlib import Path
import torch

def data(partition, partitions):
    with Path(__file__).with_name("read").open("a") as log:
        log.write(f"{partition}\\n")
    inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(partition))
    if partition in BAD:
        inputs[:] = float("nan")
    return inputs, (inputs[:, 1] > 0).long()
"""


@given(st.integers(1, 200), st.data())
def test_a_cohort_is_drawn_without_replacement_in_order(partitions: int, data) -> None:
    size = data.draw(st.integers(1, partitions))
    drawn = Cohort(size).draw(data.draw(st.integers(0, 9)), data.draw(st.integers(1, 99)), range(partitions))
    assert len({*drawn}) == size
    assert [*drawn] == sorted(drawn)
    assert 0 <= drawn[0] <= drawn[-1] < partitions


@given(st.integers(1, 9), st.sets(st.integers(0, 11), min_size=1), st.booleans(), st.integers(1, 99))
def test_of_those_that_are_present_as_many_are_drawn_as_there_are(size, present, by_size, round) -> None:
    """If all are, it is the cohort that is drawn without a look at them."""
    cohort, sizes = Cohort(size, by_size), range(3, 15)
    drawn = cohort.draw(1, round, sizes, [*present])
    assert {*drawn} <= present
    assert len({*drawn}) == len(drawn) == min(size, len(present))
    assert [*drawn] == sorted(drawn)
    assert cohort.draw(1, round, sizes, range(12)) == cohort.draw(1, round, sizes)


def test_seed_and_round_decide_and_all_are_drawn_equally_often() -> None:
    def draw(seed: int, round: int) -> tuple[int, ...]:
        return Cohort(3).draw(seed, round, range(10))

    assert draw(1, 2) == draw(1, 2)
    assert len({draw(seed, round) for seed in range(5) for round in range(5)}) > 20
    counts = Counter(p for round in range(3000) for p in draw(0, round))
    assert max(abs(counts[p] - 900) for p in range(10)) < 125  # five standard deviations


def test_by_size_a_partition_is_drawn_as_often_as_it_has_examples() -> None:
    counts = Counter(p for round in range(3000) for p in Cohort(1, by_size=True).draw(0, round, [1, 3, 0, 6]))
    assert [round(counts[p] / 300) for p in range(4)] == [1, 3, 0, 6]
    with pytest.raises(DataError, match="a cohort of 4 by size: only 3 partitions have examples"):
        Cohort(4, by_size=True).draw(0, 1, [1, 3, 0, 6])


@given(st.integers(2, 60), st.data())
def test_who_computes_next_is_one_of_those_that_do_not(partitions: int, data) -> None:
    busy = data.draw(st.sets(st.integers(0, partitions - 1), max_size=partitions - 1))
    pushes = data.draw(st.integers(1, 10**6))
    for by_size in (False, True):
        drawn = Cohort(1, by_size).draw_next(0, pushes, [1 + p % 3 for p in range(partitions)], busy)
        assert drawn in {*range(partitions)} - busy
        assert drawn == Cohort(1, by_size).draw_next(0, pushes, [1 + p % 3 for p in range(partitions)], {*busy})


def test_all_that_do_not_compute_are_drawn_next_equally_often_or_as_often_as_they_have_examples() -> None:
    counts = Counter(Cohort(3).draw_next(0, pushes, range(8), {5, 0, 2}) for pushes in range(5000))
    assert counts.keys() == {1, 3, 4, 6, 7}
    assert max(abs(count - 1000) for count in counts.values()) < 142  # five standard deviations
    by_size = Cohort(2, by_size=True)
    counts = Counter(by_size.draw_next(0, pushes, [1, 3, 0, 6, 9], {4, 2}) for pushes in range(3000))
    assert [round(counts[p] / 300) for p in range(5)] == [1, 3, 0, 6, 0]
    with pytest.raises(DataError, match="a cohort of 2 by size: only 2 partitions have examples, too few"):
        by_size.draw_next(0, 1, [1, 0, 2], {0, 2})


def test_by_size_the_sizes_are_those_of_the_rounds_own_split() -> None:
    fields = {"partitions": 6, "split": "dirichlet_by_class:0.2", "resplit_every": 2}
    partitions = describe(plan(rw.TrainConfig(**fields, cohort=2, cohort_by_size=True)), gather_here).partitions
    sizes = [partitions.sizes(number) for number in (0, 1, 2)]
    assert sizes[0] != sizes[1] != sizes[2]
    for round in range(1, 7):
        drawn = Cohort(2, by_size=True).draw(0, round, sizes[(round - 1) // 2])
        assert asked_of(partitions, 0, round) == drawn


def fields(own, bad: set[int] = frozenset()) -> dict[str, object]:  # type: ignore[assignment]
    path = own(SOURCE.replace("BAD", repr({*bad} or ())))
    where = {"data": f"{path}:data", "model": "linear", "loss": "mse", "held_out": 0.2}
    return where | {"partitions": 6, "cohort": 3, "rounds": 3, "local_steps": 1}


def test_the_data_of_others_are_not_read_in_a_round(train, own, tmp_path) -> None:
    """Before round 1 all are described, and what was opened then may still be held."""
    read = tmp_path / "read"

    def note(commit) -> None:
        found = {int(line) for line in read.read_text().split()} if read.exists() else set()
        assert commit.round == 1 or found <= {*commit.updates}
        assert len(commit.updates) == 3
        read.unlink(missing_ok=True)

    train(**fields(own) | {"rounds": 6, "data_memory": "1KB"}, on_commit=note)


def test_the_data_of_others_are_not_read_for_a_server(train, own, tmp_path) -> None:
    """A partition's are read when it begins a push; those of the first cohort also where the network is scored."""
    read, first = tmp_path / "read", {*Cohort(3).draw(0, 0, range(6))}

    def note(commit) -> None:
        found = {int(line) for line in read.read_text().split()} if read.exists() else set()
        assert commit.round == 1 or found <= {*commit.updates} | (first if commit.score else set())
        assert len(commit.server.in_flight) == 3
        read.unlink(missing_ok=True)

    server = {"algorithm": "fed_buff", "buffer": 2, "rounds": 12, "evaluate_every": 4, "data_memory": "1KB"}
    run = train(**fields(own) | server, name="served", on_commit=note)
    assert run.verify().sound
    assert [round for round in range(1, 13) if run.round(round).score] == [4, 8, 12]
    assert run.round(4).commit.score.examples == 3 * 4
    again = rw.open_run(run.path).recombine(trust=True)
    assert all(round.identical for round in again.rounds)
    scores = {round.round: round.score for round in again.rounds}
    assert [scores[round] for round in (4, 8, 12)] == [run.round(round).commit.score for round in (4, 8, 12)]


def test_the_quorum_counts_those_that_take_part(train, own) -> None:
    everyone = fields(own) | {"quorum": 3}
    cohorts = [{*train(**everyone, name="sound").round(number).commit.updates} for number in (1, 2, 3)]
    bad = min(cohorts[1] - cohorts[0])
    with pytest.raises(RoundFailed, match=f"round 2: 2 of 3 updates are sound, 3 needed; partition {bad}"):
        train(**fields(own, {bad}) | {"quorum": 3}, name="failing")


@pytest.mark.parametrize(
    ("given", "size"), [("4", 4), ("0.25", 3), (0.001, 1), (1, 1), ("1.0", None), (12, None), (None, None)]
)
def test_a_cohort_is_a_number_or_a_share(given: object, size: int | None) -> None:
    drawn = plan(rw.TrainConfig(partitions=12, cohort=given)).sampler
    assert (drawn and drawn.size) == size


# Scores of the partitions themselves.

DEALT = {"data": "digits", "partitions": 3, "split": "dirichlet:0.3", "held_out": 0.1}


def test_a_partition_trains_on_none_of_its_own_held_out_examples(train) -> None:
    partitions = describe(plan(rw.TrainConfig(**DEALT, score_partitions=0.2)), gather_here).partitions
    whole = describe(plan(rw.TrainConfig(**DEALT)), gather_here).partitions
    for number in range(3):
        train, own, before = partitions.load(0, number), partitions.own_part(number, 0), whole.load(0, number)
        assert len(own) == pytest.approx(0.2 * len(before), abs=5)  # a half of an example of each class
        rows = [tuple(row.flatten().tolist()) for row in (*train.inputs, *own.inputs)]
        assert sorted(rows) == sorted(tuple(row.flatten().tolist()) for row in before.inputs)
        held_out, as_before = (each.held_out_part(number, number, 3) for each in (partitions, whole))
        assert torch.equal(held_out.inputs, as_before.inputs)
        assert partitions.sizes(0)[number] == len(train)
    assert not len(whole.own_part(0, 0))


def test_what_is_held_out_in_one_split_is_trained_on_in_none(train) -> None:
    partitions = describe(
        plan(rw.TrainConfig(**DEALT, resplit_every=2, score_partitions=0.2)), gather_here
    ).partitions
    trained, own = (
        [[part(number, p).inputs for p in range(3)] for number in range(3)]
        for part in (partitions.load, lambda number, p: partitions.own_part(p, number))
    )
    trained_bytes, own_bytes = (
        [{each.numpy().tobytes() for inputs in parts for each in inputs} for parts in kind]
        for kind in (trained, own)
    )
    assert own_bytes[0] == own_bytes[1] == own_bytes[2]
    assert not own_bytes[0] & set.union(*trained_bytes)
    assert {inputs.sum().item() for inputs in own[0]} != {inputs.sum().item() for inputs in own[1]}


def test_history_has_the_mean_of_own_scores_by_examples(stored) -> None:
    run = stored("scored")
    metrics = [update.metrics for update in run.round(2).commit.updates.values()]
    scores, weights = ([each[name] for each in metrics] for name in ("own_accuracy", "own_examples"))
    assert run.history()["own_accuracy"][2] == pytest.approx(statistics.fmean(scores, weights))


def test_what_the_scores_of_twenty_partitions_say_by_hand() -> None:
    """Losses 1 to 20, each of two examples; the worst tenth are those of 19 and 20."""
    objective = Objective(ModelSpec("linear", (1,), 1, "float32", 0), "mse", ("mae",))
    pairs = itertools.product(range(1, 21), (1.0, 3.0))
    tallies = [Tally(1, {"loss": (float(p), 1), "mae": (each / p, 1)}, partition=p) for p, each in pairs]
    summary, rows = OwnExamples().judge(objective, tallies, threads=1)
    assert rows[4] == {"own_loss": 4.0, "own_mae": 0.5, "own_examples": 2}
    assert summary["worst_loss"] == 19.5
    assert summary["worst_mae"] == pytest.approx((2 / 19 + 2 / 20) / 2)
    assert summary["spread_loss"] == pytest.approx((399 / 12) ** 0.5)  # of the numbers 1 to n: (n^2 - 1) / 12


@pytest.mark.parametrize(("held_out", "trained"), [(0, {12}), (0.2, {9, 10})])
def test_partitions_that_bring_none_hold_out_the_share(train, own, held_out: float, trained: set[int]) -> None:
    """Of 20 examples each, 0 or 4 are held out for the common score, and of the rest two fifths for their own."""
    commit = train(**fields(own) | {"held_out": held_out}, score_partitions=0.4).round(1).commit
    assert {record.weight for record in commit.updates.values()} <= trained
    assert all("own_loss" in record.metrics for record in commit.updates.values())
