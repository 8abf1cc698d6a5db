"""Predictions are sums that can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from flows.planning.calibrating import Calibration
from flows.planning.choosing import choose, close, reason
from flows.planning.predicting import Prediction, predict
from flows.planning.strategies import Strategy, base
from flows.planning.trying import Tried
from flows.planning.workload import Workload
from storage.errors import ClusterError
from tasks.planning.measuring import Pace

WORK = Workload(6400, 32, state=1_000_000, data=20_000_000, epochs=1, scored=2, local="fed_avg")
ALONE = Pace(0.001, 0.01, score=0.5, reduce=1e-9, store=2e-9, resident=200_000_000, available=10**9, cores=2)
TOGETHER = Pace(0.002, 0.02, score=0.5, reduce=1e-9, store=2e-9, resident=300_000_000, available=10**9, cores=2)


def measured(**rounds: float) -> Calibration:
    """By two workers; rounds of one step took so many seconds by executor."""
    seconds_by = {"inline": 0.03} | rounds
    tried = {f"synchronous, {name}": Tried(seconds, seconds, seconds) for name, seconds in seconds_by.items()}
    return Calibration(2, 1, {1: ALONE}, TOGETHER, 0.001, 0.003, tried, {})


def local(executor: str, partitions: int, steps: int, algorithm: str = "fed_avg") -> Strategy:
    return Strategy(f"local {steps}", executor, partitions, algorithm, steps, 1, {"local_steps": steps})


def test_a_round_is_maps_and_what_lies_between() -> None:
    # Of a round of one step on two partitions 0.03 s, the maps are 2 * (0.01 + 0.001); so 0.004 lie between for
    # each. A round is an epoch, and to score after each second one takes 0.5 s.
    single = predict(local("inline", 1, 200), WORK, measured())
    assert single.seconds == pytest.approx(0.004 + 0.01 + 200 * 0.001 + 0.5 / 2)
    assert single.epoch == pytest.approx(single.seconds)  # 200 steps of 32 are 6,400 examples
    # Of 0.05 s as a gang the map is 0.02 + 0.002; so 0.028 lie between, also of a round of 50 steps, of which two
    # partitions need 2 for an epoch, and 4 from score to score.
    gang = predict(local("gang", 2, 50), WORK, measured(gang=0.05))
    assert gang.seconds == pytest.approx(0.028 + 0.02 + 50 * 0.002 + 0.5 / 4)
    assert gang.epoch == pytest.approx(2 * gang.seconds)


def test_a_batch_is_no_more_than_a_partition_has() -> None:
    # Of 100 examples two partitions have 50 each: a round of one step sees all, of two steps all twice.
    few = replace(WORK, examples=100, batch=80)
    assert base("graph", 2).rounds(few) == 1
    assert local("graph", 2, 2).rounds(few) == 0.5
    assert base("inline", 1).rounds(few) == 100 / 80


def test_parts_add_up_and_the_largest_bounds() -> None:
    gang = predict(local("gang", 2, 50), replace(WORK, scored=100), measured(gang=0.05))
    # Three vectors of a million bytes are stored and two reduced; the rest of what lies between is exchanged.
    stored, reduced = 3 * 1_000_000 * 2e-9, 2 * 1_000_000 * 1e-9
    wanted = {"storing": stored, "reducing": reduced, "exchanging": 0.028 - stored - reduced, "maps": 0.12}
    assert {name: gang.parts[name] for name in wanted} == pytest.approx(wanted)
    assert sum(gang.parts.values()) == pytest.approx(gang.seconds)
    assert gang.bound == "maps"
    assert predict(local("gang", 2, 2), replace(WORK, scored=100), measured(gang=0.9)).bound == "exchanging"


def test_rounds_that_were_tried_take_what_they_took() -> None:
    one = predict(base("graph", 2), replace(WORK, scored=1000), measured(graph=0.05))
    # Of 100 rounds an epoch, each 100,000th is scored, for which 0.5 s are nothing.
    assert (one.seconds, one.fastest, one.slowest) == pytest.approx((0.05, 0.045, 0.055), rel=1e-3)
    assert one.epoch == pytest.approx(100 * one.seconds)
    tried = replace(measured(gang=0.05), rounds={"local 50": Tried(0.1, 0.09, 0.2)})
    again = predict(local("gang", 2, 50), replace(WORK, scored=1e9), tried)
    assert (again.seconds, again.fastest, again.slowest) == pytest.approx((0.1, 0.09, 0.2), rel=1e-3)


def test_arrivals_are_one_of_as_many_maps_as_there_are_workers() -> None:
    asynchronous = Strategy("asynchronous", "graph", 2, "async_sgd", 1)
    tried = replace(measured(), rounds={"asynchronous": Tried(0.02, 0.02, 0.02)})
    prediction = predict(asynchronous, replace(WORK, scored=1e9), tried)
    assert prediction.parts["maps"] == pytest.approx((0.02 + 0.002) / 2)
    assert prediction.epoch == pytest.approx(200 * 0.02, rel=1e-3)


def test_what_could_not_be_tried_is_refused_with_the_reason() -> None:
    split = Strategy("split", "gang", 1, "fed_avg", 20, 1, {"ranks": 2})
    prediction = predict(split, WORK, replace(measured(), failed={"split": "no layers to share"}))
    assert (prediction.refused, prediction.epoch) == ("no layers to share", inf)


def test_what_failed_in_a_trial_is_not_predicted_by_formula() -> None:
    # Such rounds of one step as its executor took are known, too.
    failed = replace(measured(gang=0.05), failed={"local 50": "a rank ended"})
    assert predict(local("gang", 2, 50), WORK, failed).refused == "a rank ended"


def test_turns_of_a_trial_count_alike() -> None:
    turns = Tried.of([Tried(0.1, 0.08, 0.12, sent=7), Tried(0.2, 0.19, 0.21, sent=7)])
    assert (turns.seconds, turns.fastest, turns.slowest, turns.sent) == (pytest.approx(0.15), 0.08, 0.21, 7)


def test_what_is_other_work_is_refused() -> None:
    work = replace(WORK, options={"optimizer": "AdamW", "lr": 0.01})
    assert predict(base("graph", 2), work, measured(graph=0.05)).refused == "sync_sgd takes no optimizer"
    assert predict(local("inline", 1, 200), work, measured()).refused is None


def test_what_has_more_rounds_than_a_run_may_have_is_refused() -> None:
    refused = predict(base("graph", 2), replace(WORK, epochs=20_000), measured(graph=0.05)).refused
    assert refused == "it has 2,000,000 rounds, and a run at most 1,000,000"


def test_what_needs_more_memory_than_there_is_is_refused() -> None:
    large = replace(WORK, state=200_000_000, data=0)
    refused = predict(local("inline", 1, 200), large, measured()).refused
    assert refused == "a process needs 1335 MiB of memory and has 1144"  # 200 MB and 6 times 200; 200 MB and 1 GB


def prediction(name: str, epoch: float, refused: str | None = None, executor: str = "graph") -> Prediction:
    strategy = Strategy(name, executor, 2, "fed_avg", 10)
    return Prediction(strategy, epoch, 1, 1, epoch, 0, 0, 0, {"maps": 1.0}, refused)


def test_the_least_is_chosen_and_one_process_where_it_is_about_that() -> None:
    best, near = prediction("best", 1.0), prediction("near", 1.01)
    single, slow = prediction("single", 1.09, executor="inline"), prediction("single", 1.11, executor="inline")
    assert choose([near, best]) is best
    assert choose([near, single, best]) is single
    assert choose([near, slow, best]) is best
    refused = prediction("refused", 0.5, "no")
    assert choose([refused, best]) is best
    with pytest.raises(ClusterError, match="no strategy can do this work here: no"):
        choose([refused])


def test_close_ones_are_tried_where_their_rounds_are_short() -> None:
    near, far, long = prediction("near", 1.2), prediction("far", 1.4), prediction("long", 2.1)
    best = prediction("best", 1.0)
    assert close([near, far, best]) == [near, best]
    assert close([far, best]) == []  # nothing is to be decided
    assert close([long, prediction("longer", 2.2)]) == []


def test_the_reason_names_the_best_of_the_other_kind() -> None:
    single, gang = prediction("single", 1.0, executor="inline"), prediction("gang", 1.5, executor="gang")
    slower = prediction("graph", 2.0)
    assert reason(single, [slower, gang, single]) == (
        "single takes 1 s an epoch, bound by maps; "
        "the best that is distributed is gang, 1.50 times as long, bound by maps"
    )
    assert reason(single, [single]).endswith("there is nothing else to do the work with")
