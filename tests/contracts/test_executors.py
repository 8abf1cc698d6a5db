"""An executor gives its rounds the bits of one process; a parameter server, those of the order that it records.

Whatever maps do is told by name, and costs no bit of anything else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.executors.base import EXECUTORS, Executor, Setting
from roundweave.tasks.rounds.evidence.results import RoundResult
from tests.counting import counting
from tests.patience import PATIENCE
from tests.rows import but_first
from tests.tasks.executors import deeds
from tests.tasks.executors.deeds import HOT, executors, identities, idle, lines, refused, until

Make = Callable[..., Executor]


KINDS = [name for name in EXECUTORS if name != "auto"]  # which is two of the others


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(kind, client) -> Make:
    """Make an executor of a kind: each line of the table is one."""
    entry = EXECUTORS[kind]
    return partial(entry.load(), client) if entry.distributed else entry.load()


@pytest.fixture
def hang(do, tmp_path: Path, caplog, monkeypatch) -> Callable[..., None]:
    """Have the map of a partition hang until two lines about it are told."""

    def goes_on_after_the_second(record: logging.LogRecord) -> bool:
        if lines(caplog):
            (tmp_path / "go-on").touch()
        return True

    monkeypatch.setattr(logging.getLogger("roundweave"), "filters", [goes_on_after_the_second])
    return partial(do, "while not Path(__file__).with_name('go-on').exists(): time.sleep(0.1)")


MEMORY = "raise MemoryError('none left')"


def three(fields: dict[str, object]) -> dict[str, object]:
    """Three partitions of the experiment; the rest is of a server's algorithm."""
    return {name: fields[name] for name in ("data", "model", "held_out")} | {"partitions": 3}


def frees_its_workers(client) -> None:
    until(lambda: idle(client))
    for number, worker in enumerate(client.nthreads()):
        assert client.submit(abs, number, workers=[worker], pure=False).result(timeout=PATIENCE) == number


class TestExecutor:
    @pytest.mark.parametrize("window", but_first([3], [1]))
    def test_any_window_gives_the_bits_of_one_process(self, train, own, make, kind, window) -> None:
        """Of carries, extras, buffers, frozen tensors, and updates that are refused."""
        fields = {**counting(own), "partitions": 3, "rounds": 5}
        reference = train(**fields, name="reference")
        run = train(make(), window, **fields, name="there")
        assert identities(run) == identities(reference)
        assert {*executors(run)} == {kind}
        assert run.verify().sound

    @pytest.mark.thorough
    def test_what_maps_observe_has_the_same_bits(self, train, make) -> None:
        fields = {"data": "digits", "split": "shards:2", "partitions": 4, "rounds": 1, "reduce": "regmean"}
        fields |= {"model_options": {"hidden": 16}, "local_steps": 3}
        run = train(make(), **fields, name="there")
        assert identities(run) == identities(train(**fields, name="reference"))
        assert run.replay("all").identical

    @pytest.mark.parametrize("window", but_first([3], [1]))
    def test_a_run_goes_on_with_another_executor(self, train, own, make, window) -> None:
        fields = {**counting(own), "partitions": 3, "rounds": 5}
        reference = train(**fields, name="reference")
        for rounds, executor in ((2, None), (4, make()), (5, None)):
            resumed = train(executor, window, **fields | {"rounds": rounds}, name="resumed")
        assert identities(resumed) == identities(reference)
        assert len({resumed.round(n).commit.token for n in range(1, 6)}) == 3

    def test_functions_are_called_in_each_process_and_with_each_number(self, make, kind, client) -> None:
        executor = make()
        assert {*executor.each(os.getpid).values()} == (
            {*client.run(os.getpid).values()} if EXECUTORS[kind].distributed else {os.getpid()}
        )
        assert executor.gather(lambda number: number * number, [2, 0, 1]) == [4, 0, 1]

    def test_rounds_are_replayed_in_order_and_nothing_is_written(self, train, fields, make, tmp_path) -> None:
        run = train(**fields, name="run")
        job = deeds.replay_job(run, fields, tmp_path)
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        assert list(make().replay(job, [3, 1, 4])) == [RoundResult(3), RoundResult(1), RoundResult(4)]
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before

    def test_it_ends_early_after_a_commit_that_says_to_stop(self, train, fields, make, client) -> None:
        fields = fields | {"held_out": 0.2, "patience": 3, "lr": 1e-9, "rounds": 30}
        run = train(make(), 30, **fields, name="there")
        assert run.done < 30
        assert identities(run) == identities(train(**fields, name="reference"))
        until(lambda: idle(client))

    @pytest.mark.dear("what raises is mapped again on each worker, and replayed")
    def test_a_partition_that_raises_is_refused_by_name_and_the_others_go_on(
        self, train, client, fields, do, make, kind, tmp_path
    ) -> None:
        """Whether it raises when it is replayed, or does not any more. The words tell of a process: they are
        in the record, and in nothing that is compared."""
        fields |= {"rounds": 2, "momentum": 0.5}
        do(HOT, 2, always=True)
        wanted = train(**fields, name="wanted")
        run = train(make(), 3, **fields, name="run")
        assert refused(run) == {1: [2], 2: [2]}
        assert run.round(2).refused[2].startswith("its map failed with ValueError: too hot in process ")
        assert identities(run) == identities(wanted)
        assert rw.diff(run.path, wanted.path).equal
        assert run.verify().sound
        placed = {"executor": "graph", "scheduler": client.scheduler.address} if kind == "graph" else {}
        for there in (True, False):
            if not there:
                (tmp_path / "map-2-0-always").unlink()
            replay = rw.open_run(run.path).replay("all", **placed)
            assert replay.identical
            assert len(replay.replayed) == 2
            assert "not mapped again: partition 2 in round 1 to 2, as it had raised" in str(replay)

    def test_a_round_without_enough_sound_updates_fails_with_the_line(self, train, fields, do, make) -> None:
        do(HOT, range(4), always=True)
        says = r"round 1: 0 of 4 updates are sound, 1 needed; partition \d: its map failed with ValueError: too"
        with pytest.raises(RoundFailed, match=says):
            train(make(), 3, **fields, name="all")
        do("", range(3), always=True)
        says = "round 1: 3 of 4 updates are sound, 4 needed; partition 3: its map failed"
        with pytest.raises(RoundFailed, match=says):
            train(make(), 3, **fields, quorum=4, name="quorum")

    def test_a_map_that_fails_ends_the_run_and_frees_the_workers(self, train, client, fields, do, make) -> None:
        do(MEMORY, 2, 3)
        wanted = r"round \d+: the map of partition 2 failed with MemoryError: none left"
        with pytest.raises(RoundFailed, match=wanted):
            train(make(), 30, **fields | {"rounds": 30}, name="there")
        frees_its_workers(client)
        assert rw.open_run("there").done >= 3

    @pytest.mark.parametrize(
        ("how", "told"), but_first([("sys.exit(3)", "SystemExit: 3")], [("deeper()", "RecursionError: maximum")])
    )
    def test_what_would_end_a_process_fails_the_round_alone(self, train, own, client, make, how, told) -> None:
        workers = client.run(os.getpid)
        path = own(deeds.FAILING.format(how=how, training=True))
        with pytest.raises(RoundFailed, match=rf"round 1: .*partition 0: its map failed with {told}"):
            train(make(), 1, model="logistic", rounds=1, partitions=2, loss=f"{path}:loss")
        assert client.run(os.getpid) == workers

    def test_a_map_that_hangs_is_named_while_it_hangs(self, train, fields, hang, caplog, make) -> None:
        hang(2, 2)
        train(make(Setting(worker_timeout=1)), 1, **fields | {"rounds": 12}, name="there")
        told = lines(caplog)
        assert len({line.partition(" for ")[0] for line in told}) == 1
        assert len(told) == 2
        # The commit of round 2 may be under way until a rank maps round 4, which another may do before it.
        says = r"round [345]: partition 2 has been mapping for \d s, the others took 0\.\d+ s"
        assert all(re.fullmatch(says, line) for line in told), told
