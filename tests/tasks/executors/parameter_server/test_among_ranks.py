"""A parameter server among ranks in real processes: it is its recorded order, whoever dies, raises or ends."""

from __future__ import annotations

import time
from collections import Counter

import pytest

import roundweave as rw
from roundweave.flows.stored import Run
from roundweave.storage.errors import ClusterError, RoundFailed
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.tasks.executors.deeds import KILL, foreign, lines, until
from tests.tasks.executors.parameter_server.proving import RUNS, SMALL, identities
from tests.tasks.sampled import sampled

ROUNDS = 40
slow = pytest.mark.slow


def executors(run: Run) -> list[str]:
    """What ran each round."""
    return [run.round(round).commit.executor for round in range(1, run.done + 1)]


def mapped_by(run: Run) -> Counter[str]:
    """How many updates each process has mapped."""
    commits = [run.round(round).commit for round in range(1, run.done + 1)]
    return Counter(update.worker for commit in commits for update in commit.updates.values())


@pytest.mark.parametrize("name", sampled(2, RUNS))
def test_a_run_by_ranks_is_that_of_its_recorded_order(train, client, proven, name) -> None:
    fields = SMALL | RUNS[name] | {"rounds": ROUNDS}
    run = train(RanksExecutor(client), 15, **fields, name="run")
    assert run.done == ROUNDS
    assert {*executors(run)} == {"ranks"}
    assert len(mapped_by(run)) == 1, "of two ranks one serves"
    proven(run, **fields)


def test_the_server_has_no_partition_and_the_others_have_all_of_them(train, proven) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"rounds": ROUNDS, "partitions": 5}
    with connect(None, 3) as client:
        run = train(RanksExecutor(client), ROUNDS, **fields, name="run")
        server = run.round(ROUNDS).commit.worker
    assert len(mapped_by(run)) == 2
    assert server not in mapped_by(run)
    proven(run, **fields)


def test_the_same_ranks_serve_over_windows_and_a_later_run_goes_on(train, client, proven) -> None:
    formed = []
    fields = SMALL | RUNS["easgd"]
    for rounds in (11, 30):
        executor = RanksExecutor(client)
        train(
            executor, 4, lambda _, e=executor: formed.append(e._running), **fields | {"rounds": rounds}, name="run"
        )
        executor.end()
    assert len(set(formed)) == 2
    proven(rw.open_run("run"), **fields | {"rounds": 30})


def test_what_a_partition_carries_that_sits_out_is_read_from_the_store(train, client, proven) -> None:
    """One of nine computes at a time: each comes back long after its last push, to what it carried then."""
    fields = SMALL | {"algorithm": "easgd", "local_steps": 1, "partitions": 9, "cohort": 1, "rounds": 100}
    run = train(RanksExecutor(client), 100, **fields, name="run")
    assert {*executors(run)} == {"ranks"}
    pushes = Counter(p for round in range(1, 101) for p in run.round(round).commit.updates)
    assert min(pushes.values()) > 1
    proven(run, **fields)


def test_rounds_that_are_scored_have_the_scores_of_the_recorded_order(train, client) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"evaluate_every": 3}
    run = train(RanksExecutor(client), 12, **fields, name="run")
    again = train(**fields, order="recorded:run", name="again")
    assert [round for round in range(13) if run.round(round).score] == [0, 3, 6, 9, 12]
    assert [run.round(n).score for n in (0, 3, 6, 9, 12)] == [again.round(n).score for n in (0, 3, 6, 9, 12)]


def test_a_run_ends_at_its_target_and_frees_its_workers(train, client) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"rounds": 2000, "evaluate_every": 5, "target_accuracy": 0.5}
    run = train(RanksExecutor(client), 50, **fields, name="run")
    assert run.round(run.done).score.values["accuracy"] >= 0.5
    assert run.done % 5 == 0
    assert run.done < 2000
    until(lambda: not any(client.processing().values()))
    assert run.status == "complete"
    assert identities(train(**fields, order="recorded:run", name="again")) == identities(run)


@pytest.mark.parametrize("name", ["downpour", pytest.param("fed_buff-cohort", marks=slow)])
def test_a_rank_that_is_killed_costs_what_was_in_flight(train, deeds, do, proven, caplog, name) -> None:
    """The rest of the window is done by tasks; then there are ranks again."""
    for round in (5, 30):
        do(KILL, 2, round)
    fields = deeds | RUNS[name] | {"rounds": 60}
    with connect(None, 2) as client:
        run = train(RanksExecutor(client), 10, **fields, name="there")
    assert run.done == 60
    by = executors(run)
    assert sum("is lost; its work is done again" in line for line in lines(caplog)) in (1, 2)
    assert (by[0], by[-1], {*by}) == ("ranks", "ranks", {"ranks", "graph"})
    proven(run, **fields)


KILL_SERVER = """
import json
record = Path(__file__).with_name("runs") / "there.zarr/commits/20.json"
os.kill(int(json.loads(record.read_text())["worker"].split(":")[1]), signal.SIGKILL)
"""


def test_a_server_that_is_killed_costs_no_committed_round(train, deeds, do, proven) -> None:
    do(KILL_SERVER, 2, 20)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 60}
    with connect(None, 2) as client:
        run = train(RanksExecutor(client), 10, **fields, name="there")
    assert run.done == 60
    committed = [run.round(round).commit.worker for round in range(1, 61)]
    assert committed[19] == committed[0]
    assert committed[19] not in committed[-10:]
    proven(run, **fields)


def test_a_map_that_raises_leaves_the_window_to_tasks_and_is_refused_nowhere(
    train, client, deeds, do, proven
) -> None:
    do("raise ValueError('too hot')", 2, 12)
    fields = deeds | RUNS["easgd"] | {"rounds": 60}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert not any(run.round(round).refused for round in range(1, 61))
    assert (executors(run)[0], executors(run)[-1], {*executors(run)}) == ("ranks", "ranks", {"ranks", "graph"})
    proven(run, **fields)


@slow
def test_a_partition_whose_map_always_raises_is_refused_by_name(train, client, deeds, do, proven) -> None:
    do("raise ValueError('broken')", 2, 0, always=True)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 40}
    run = train(RanksExecutor(client), 10, **fields, name="run")
    assert {p for round in range(1, 41) for p in run.round(round).refused} == {2}
    assert [*dict.fromkeys(executors(run))] in (["graph"], ["ranks", "graph"])


def test_a_map_that_fails_ends_the_run_by_name_and_keeps_the_rounds_before(train, client, deeds, arm) -> None:
    armed = arm((2,), "raise MemoryError('none left')", always=True)
    fields = deeds | RUNS["fed_buff"] | {"rounds": 1000}
    says = r"round \d+: the map of partition 2 failed with MemoryError: none left"
    with pytest.raises(RoundFailed, match=says) as caught:
        train(RanksExecutor(client), 50, armed, **fields, name="failing")
    assert "\n" not in str(caught.value)
    run = rw.open_run("failing")
    assert run.verify().sound
    assert run.done >= 2
    until(lambda: not any(client.processing().values()))


@slow
def test_a_partition_that_ends_every_worker_is_named(train, deeds, arm) -> None:
    fields = deeds | RUNS["async_sgd"] | {"rounds": 1000}
    says = r"round \d+ was lost \d times \(workers died at partition 2: .*`roundweave resume` goes on"
    with connect(None, 2) as client, pytest.raises(ClusterError, match=says):
        train(RanksExecutor(client), 1000, arm((6,), KILL, always=True), **fields, name="deadly")
    assert rw.open_run("deadly").verify().sound


def test_long_maps_are_left_to_tasks_once_they_are_known(train, client, deeds, do, proven) -> None:
    """As the rank that serves would not map. What ranks have committed beyond a window stays in the order."""
    for partition in range(3):
        do("time.sleep(0.04)", partition, 0, always=True)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 60}
    run = train(RanksExecutor(client), 20, **fields, name="there")
    by = executors(run)
    assert by == sorted(by, reverse=True)
    assert (by[0], by[-1]) == ("ranks", "graph")
    proven(run, **fields)


def test_short_maps_are_served_by_a_rank_where_it_may_choose(train, client, proven) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"rounds": 60}
    run = train(AutoExecutor(client), 20, **fields, name="run")
    assert (executors(run)[0], executors(run)[-1]) == ("graph", "ranks")
    proven(run, **fields)


def test_one_worker_alone_has_no_server_beside_it(train) -> None:
    with foreign(1) as client:
        run = train(RanksExecutor(client), 12, **SMALL | RUNS["async_sgd"], name="run")
    assert {*executors(run)} == {"graph"}


def test_ranks_that_are_left_in_mid_run_end_and_what_they_did_is_gone_on_from(train, client, proven) -> None:
    class Left(Exception):
        pass

    def leave(commit) -> None:
        if commit.round == 7:
            raise Left

    fields = SMALL | RUNS["fed_buff"]
    with pytest.raises(Left):
        train(RanksExecutor(client), 5, leave, **fields | {"rounds": 100_000}, name="run")
    until(lambda: not any(client.processing().values()))
    done = rw.open_run("run").done
    time.sleep(0.5)
    assert rw.open_run("run").done == done >= 7
    fields |= {"rounds": done + 10}
    proven(train(RanksExecutor(client), 5, **fields, name="run"), **fields)
