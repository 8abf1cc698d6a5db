"""A parameter server among ranks in real processes: it is its recorded order, whoever dies, raises or ends."""

from __future__ import annotations

import pytest

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.flows.plugins.parameter_server.proving import RUNS, SMALL, mapped_by
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, executors, foreign, lines, refused


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


def by_ranks_then_tasks_then_ranks(run) -> bool:
    by = executors(run)
    return (by[0], by[-1], {*by}) == ("ranks", "ranks", {"ranks", "graph"})


@pytest.mark.parametrize(("name", "rounds"), but_first([("downpour", (5,))], [("fed_buff-cohort", (5, 20))]))
def test_a_rank_that_is_killed_costs_what_was_in_flight(
    train, client, deeds, do, proven, caplog, name, rounds
) -> None:
    """The rest of the window is done by tasks; then there are ranks again."""
    for round in rounds:
        do(KILL, 2, round)
    # A record may be written so late that its rank dies in the window after it: one more has ranks again.
    fields = deeds | RUNS[name] | {"rounds": 10 + 20 * len(rounds)}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert run.done == fields["rounds"]
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
def test_a_map_that_raises_once_leaves_the_window_to_tasks(train, client, deeds, do, proven) -> None:
    """And is refused nowhere."""
    do("raise ValueError('too hot')", 2, 12)
    fields = deeds | RUNS["easgd"] | {"rounds": 40}
    run = train(RanksExecutor(client), 10, **fields, name="there")
    assert refused(run) == {}
    assert by_ranks_then_tasks_then_ranks(run)
    proven(run, **fields)


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


@pytest.mark.thorough
def test_one_worker_alone_has_no_server_beside_it(train) -> None:
    with foreign(1) as client:
        run = train(RanksExecutor(client), 12, **SMALL | RUNS["async_sgd"], rounds=12, name="run")
    assert {*executors(run)} == {"graph"}
