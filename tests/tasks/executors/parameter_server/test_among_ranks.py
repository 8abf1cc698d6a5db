"""A parameter server among ranks in real processes: it is its recorded order, whoever dies, raises or ends."""

from __future__ import annotations

import time

import pytest

import roundweave as rw
from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.tasks.executors.deeds import KILL, executors, foreign, idle, lines, refused, second, until
from tests.tasks.executors.parameter_server.proving import RUNS, SMALL, mapped_by

slow = pytest.mark.slow


@pytest.mark.thorough
def test_the_server_has_no_partition_and_the_others_have_all_of_them(train, proven) -> None:
    """Three workers of its own: one serves, and two map."""
    fields = SMALL | RUNS["async_sgd"] | {"rounds": 20, "partitions": 5}
    with connect(None, 3) as client:
        run = train(RanksExecutor(client), 20, **fields, name="run")
        server = run.round(20).commit.worker
    assert len(mapped_by(run)) == 2
    assert server not in mapped_by(run)
    proven(run, **fields)


@pytest.mark.thorough
def test_the_same_ranks_serve_over_windows_and_a_later_run_goes_on(train, client, proven) -> None:
    formed = set()
    fields = SMALL | RUNS["easgd"]
    for rounds in (11, 30):
        executor = RanksExecutor(client)

        def note(_, executor=executor) -> None:
            formed.add(executor._running)

        run = train(executor, 4, note, **fields | {"rounds": rounds}, name="run")
        executor.end()
    assert len(formed) == 2
    assert len(mapped_by(run)) == 1, "of two ranks one serves"
    proven(run, **fields | {"rounds": 30})


@pytest.mark.thorough
def test_what_a_partition_carries_that_sits_out_is_read_from_the_store(train, client, proven) -> None:
    """One of five computes at a time: each comes back long after its last push, to what it carried then."""
    fields = SMALL | {"algorithm": "easgd", "local_steps": 1, "partitions": 5, "cohort": 1, "rounds": 40}
    run = train(RanksExecutor(client), 40, **fields, name="run")
    assert {*executors(run)} == {"ranks"}
    pushes = [p for round in range(1, 41) for p in run.round(round).commit.updates]
    assert min(map(pushes.count, range(5))) > 1
    proven(run, **fields)


def by_ranks_then_tasks_then_ranks(run) -> bool:
    by = executors(run)
    return (by[0], by[-1], {*by}) == ("ranks", "ranks", {"ranks", "graph"})


@pytest.mark.parametrize("name", ["downpour", second("fed_buff-cohort")])
def test_a_rank_that_is_killed_costs_what_was_in_flight(train, client, deeds, do, proven, caplog, name) -> None:
    """The rest of the window is done by tasks; then there are ranks again."""
    for round in (5, 20):
        do(KILL, 2, round)
    fields = deeds | RUNS[name] | {"rounds": 40}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert run.done == 40
    assert sum("is lost; its work is done again" in line for line in lines(caplog)) in (1, 2)
    assert by_ranks_then_tasks_then_ranks(run)
    proven(run, **fields)


KILL_SERVER = """
import json
record = Path(__file__).with_name("runs") / "there.zarr/commits/20.json"
os.kill(int(json.loads(record.read_text())["worker"].split(":")[1]), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_a_server_that_is_killed_costs_no_committed_round(train, client, deeds, do, proven) -> None:
    do(KILL_SERVER, 2, 20)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 40}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert run.done == 40
    committed = [run.round(round).commit.worker for round in range(1, 41)]
    assert committed[19] == committed[0]
    assert committed[19] not in committed[-10:]
    proven(run, **fields)


@pytest.mark.thorough
def test_a_map_that_raises_leaves_the_window_to_tasks_and_is_refused_nowhere(
    train, client, deeds, do, proven
) -> None:
    do("raise ValueError('too hot')", 2, 12)
    fields = deeds | RUNS["easgd"] | {"rounds": 40}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert refused(run) == {}
    assert by_ranks_then_tasks_then_ranks(run)
    proven(run, **fields)


@pytest.mark.thorough
def test_a_partition_whose_map_always_raises_is_refused_by_name(train, client, deeds, do) -> None:
    do("raise ValueError('broken')", 2, always=True)
    run = train(RanksExecutor(client), 10, **deeds | RUNS["async_sgd"], rounds=40, name="run")
    assert {p for partitions in refused(run).values() for p in partitions} == {2}
    assert [*dict.fromkeys(executors(run))] in (["graph"], ["ranks", "graph"])


@slow
def test_a_partition_that_ends_every_worker_is_named(train, client, deeds, do) -> None:
    do(KILL, 2, 6, always=True)
    says = r"round \d+ was lost \d times \(workers died at partition 2: .*`roundweave resume` goes on"
    with pytest.raises(ClusterError, match=says):
        train(RanksExecutor(client), 1000, **deeds | RUNS["async_sgd"], rounds=1000, name="there")
    assert rw.open_run("there").verify().sound


@pytest.mark.thorough
def test_long_maps_are_left_to_tasks_once_they_are_known(train, client, deeds, do, proven) -> None:
    """As the rank that serves would not map. What ranks have committed beyond a window stays in the order."""
    do("time.sleep(0.04)", range(3), always=True)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 40}
    run = train(RanksExecutor(client), 20, **fields, name="there")
    by = executors(run)
    assert by == sorted(by, reverse=True)
    assert (by[0], by[-1]) == ("ranks", "graph")
    do("", range(3), always=True)  # to be proven in no time
    proven(run, **fields)


@pytest.mark.thorough
def test_short_maps_are_served_by_a_rank_where_it_may_choose(train, client, proven) -> None:
    fields = SMALL | RUNS["async_sgd"] | {"rounds": 30}
    run = train(AutoExecutor(client), 10, **fields, name="run")
    assert (executors(run)[0], executors(run)[-1]) == ("graph", "ranks")
    proven(run, **fields)


def test_one_worker_alone_has_no_server_beside_it(train) -> None:
    with foreign(1) as client:
        run = train(RanksExecutor(client), 12, **SMALL | RUNS["async_sgd"], rounds=12, name="run")
    assert {*executors(run)} == {"graph"}


@pytest.mark.thorough
def test_ranks_that_are_left_in_mid_run_end_and_what_they_did_is_gone_on_from(train, client, proven) -> None:
    class Left(Exception):
        pass

    def leave(commit) -> None:
        if commit.round == 7:
            raise Left

    fields = SMALL | RUNS["fed_buff"]
    with pytest.raises(Left):
        train(RanksExecutor(client), 5, leave, **fields | {"rounds": 100_000}, name="run")
    until(lambda: idle(client))
    done = rw.open_run("run").done
    time.sleep(0.5)
    assert rw.open_run("run").done == done >= 7
    fields |= {"rounds": done + 10}
    proven(train(RanksExecutor(client), 5, **fields, name="run"), **fields)
