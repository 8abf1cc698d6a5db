"""Maps that raise: once more elsewhere, and refused by name where they raise there, too."""

from __future__ import annotations

import time

import pytest

import roundweave as rw
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import processes
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import HOT, executors, identities, refused


@pytest.fixture
def fields(fields) -> dict[str, object]:
    return fields | {"rounds": 6, "momentum": 0.5}


@pytest.fixture
def served(fields) -> dict[str, object]:
    """The same for a parameter server."""
    return {name: fields[name] for name in ("data", "model", "partitions", "held_out")}


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "busy"), [(GraphExecutor, True), (RanksExecutor, False)])
def test_what_raises_on_one_worker_alone_is_mapped_on_another(train, client, fields, do, kind, busy) -> None:
    """Also where all others are busy, which Dask would not wait for."""
    fields |= {"rounds": 4}
    wanted = train(**fields, name="wanted")
    [_, pid], *others = sorted(processes(client).values())
    at = [address for address, process in processes(client).items() if process in others]
    sleeping = client.submit(time.sleep, 3.0 * busy, workers=at, pure=False)
    do(f"if os.getpid() == {pid}: raise ValueError('here alone')", range(4), always=True)
    run = train(kind(client), 2, **fields, name="run")
    assert refused(run) == {}
    assert identities(run) == identities(wanted)
    assert sleeping.done()


@pytest.mark.thorough
def test_the_first_map_of_new_workers_may_raise(train, fields, do) -> None:
    """Workers of its own: a rank must notice that another has gone, whatever its first map had torch import."""
    do(HOT, 2, always=True)
    with connect(None, 2) as client:
        run = train(RanksExecutor(client), 2, **fields | {"rounds": 2}, name="run")
    assert refused(run) == {1: [2], 2: [2]}


@pytest.mark.thorough
def test_ranks_go_on_once_no_map_raises(train, client, fields, do) -> None:
    records = "Path(__file__).with_name('runs') / 'there.zarr/commits'"
    do(f"if not ({records} / '7.json').exists(): {HOT}", 1, 3, always=True)
    run = train(RanksExecutor(client), 3, **fields | {"rounds": 20}, name="there")
    # Maps go on beside the commits: when they see one is open.
    assert refused(run)
    assert all(3 < round < 12 and partitions == [1] for round, partitions in refused(run).items())
    by = executors(run)
    assert {by[n - 1] for n in refused(run)} == {"graph"}
    assert {by[n - 1] for n in (1, 2, 3, 20)} == {"ranks"}
    assert rw.open_run(run.path).replay("all").identical


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["fed_buff", "downpour"])
def test_a_server_refuses_who_raises_and_goes_on(train, client, served, do, algorithm) -> None:
    served |= {"algorithm": algorithm, "rounds": 20}
    do(HOT, 2, always=True)
    run = train(GraphExecutor(client), 10, **served, name="run")
    assert {p for partitions in refused(run).values() for p in partitions} == {2}
    assert {p for n in range(1, 21) for p in run.round(n).commit.accepted} <= {0, 1, 3}
    again = train(**served, order="recorded:run", name="again")
    assert rw.diff(run.path, again.path).equal
    do("", 2, always=True)
    for name in ("run", "again"):
        assert rw.open_run(name).replay("all").identical


FAILS_LATE = """
import time
from dataclasses import dataclass
import torch.distributed as dist
import roundweave as rw
from roundweave.tasks.executors import rank_task

rank_task.TELLING_MS = 60_000  # the first rank tells of its rounds only once it ends

@dataclass(frozen=True)
class Late(rw.Sgd):
    def __call__(self, state, update):
        if state.round == 12:
            time.sleep(0.5 * (dist.get_rank() == SLOWER))
            raise ValueError("too late")
        return super().__call__(state, update)

def algorithm():
    return rw.Algorithm(rw.Gradient(batch_size=5), rw.Mean(), Late(lr=0.1))
"""


@pytest.mark.parametrize("slower", but_first([0], [1]))
def test_all_rounds_before_an_error_are_told_of(train, tmp_path, slower) -> None:
    """Workers of its own, whose module it changes. The first rank tells of several rounds at once, and another
    one may end with the error before it has."""
    told: list[int] = []
    (tmp_path / "late.py").write_text(f"SLOWER = {slower}{FAILS_LATE}")
    fields = {"algorithm": f"{tmp_path}/late.py:algorithm", "model": "logistic", "rounds": 20}
    wanted = r"^round 13: the reduce or apply failed with ValueError: too late"
    with connect(None, 2) as client, pytest.raises(RoundFailed, match=wanted):
        train(RanksExecutor(client), 20, lambda commit: told.append(commit.round), **fields, name="run")
    assert told == list(range(1, 13))
