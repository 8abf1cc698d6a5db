"""A run that is killed at any moment: it opens, shows committed rounds only, and goes on to the same bits."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from roundweave import Run, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.hierarchy import schema
from roundweave.storage.places import local
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.tasks.executors.inline import InlineExecutor
from tests.rows import but_first

FIELDS = {"model": "logistic", "local_steps": 1, "rounds": 2, "name": "run"}

CHANGES = ("stream", "create", "delete", "sweep", "sync", "make", "aside")
"""What a place does that leaves something behind."""

SYSTEM = ("write", "replace", "link", "mkdir", "unlink", "rmdir", "fsync")
"""The system's calls that do."""


NEVER = 10**9


class Killed:
    """SIGKILL in the midst of a process's work, before its call of this number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def count(self) -> None:
        """Count a call; the last one does not return."""
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count()
            return call(*arguments, **options)

        return counted


class System:
    """The module `os`, of which some calls are counted."""

    def __init__(self, killed: Killed) -> None:
        self.killed = killed

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        return self.killed.before(call) if name in SYSTEM else call

    def write(self, descriptor: int, content: memoryview) -> int:
        """Half of it is written before the process is killed."""
        os.write(descriptor, content[: len(content) // 2])
        self.killed.count()
        return len(content) // 2 + os.write(descriptor, content[len(content) // 2 :])


def at_each_call_of_a_place(killed: Killed) -> None:
    for name in CHANGES:
        setattr(LocalPlace, name, killed.before(getattr(LocalPlace, name)))


def at_each_call_of_the_system(killed: Killed) -> None:
    local.os = System(killed)  # type: ignore[assignment]


def train_until(where: Callable[[Killed], None], at: int, root: Path, data: str, algorithm: str) -> None:
    """Train, and be killed at a call of this number; a process's whole work."""
    torch.set_num_threads(1)
    where(Killed(at))
    trained(root, data, algorithm)


def trained(root: Path, data: str, algorithm: str = "scaffold") -> Run:
    """The run under a root, new or gone on with, at its end. Three partitions share a file, two have one each."""
    partitions = int(Path(data).stem.removeprefix("data"))
    config = TrainConfig(**FIELDS, algorithm=algorithm, partitions=partitions, data=data, root=root)
    executor, most = InlineExecutor(), 1 if partitions == 3 else 32
    with (
        patch.multiple(schema, MOST_SHARDS=most, SHARDS_OF_PROCESS=1),
        prepare(plan(config), executor) as ready,
    ):
        assert ready.store.schema.shard == (3 if partitions == 3 else 1)
        if ready.done < config.rounds:
            list(executor.run(ready.job, ready.done + 1, config.rounds))
    return Run(ready.store.path)


def committed(path: Path) -> list[int]:
    """The rounds that a run shows, which are verified; none where it does not exist yet."""
    if not path.exists():
        return []
    run = Run(path)
    for round in run.committed:
        run.round(round).state  # noqa: B018 (reading verifies)
    assert run.history().index.tolist() == run.committed == list(range(run.done + 1))
    assert run.lost == []
    return run.committed


@pytest.fixture(scope="module")
def processes() -> Any:
    return multiprocessing.get_context("forkserver").Process


def fork_trainings(requests: Connection) -> None:
    """Fork a process for each request, as imports take longer than a training; send its exit code."""
    for request in iter(requests.recv, None):
        child = os.fork()
        if not child:
            train_until(*request)
            os._exit(0)
        requests.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.fixture
def train_in_a_fork(processes) -> Iterator[Callable[..., int]]:
    """Runs `train_until` in a process of its own; gives its exit code."""
    requests, theirs = multiprocessing.Pipe()
    server = processes(target=fork_trainings, args=(theirs,))
    server.start()

    def run(*request: Any) -> int:
        requests.send(request)
        return requests.recv()

    yield run
    requests.send(None)
    server.join()


@pytest.fixture(params=[2, 3], ids=["a file each", "shards"])
def data(request, tmp_path) -> str:
    """Examples in a file whose name ends in the number of partitions for them."""
    numbers, path = np.random.default_rng(0), tmp_path / f"data{request.param}.npz"
    np.savez(path, x=numbers.normal(size=(20, 3)).astype("f4"), y=numbers.integers(2, size=20))
    return f"npz:{path}"


def check_and_go_on(root: Path, data: str, digest: str, algorithm: str = "scaffold") -> int:
    """How many rounds a killed run shows, in which nothing is wrong; it goes on to the same bits."""
    shown = len(committed(root / "run.zarr"))
    assert not shown or verify(root / "run.zarr").findings == ()
    assert trained(root, data, algorithm).digest == digest
    seen = verify(root / "run.zarr")
    assert (seen.findings, seen.notes) == ((), ())
    assert not [name for name in LocalPlace(root / "run.zarr").sizes() if name.endswith(local.PARTIAL)]
    return shown


SLOW = pytest.mark.slow
SAMPLE = 9
"""How many of the calls the quick test kills at, evenly spread."""


def calls_of_a_run(root: Path, data: str, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> int:
    """How many calls of a place a whole run makes."""
    counter = Killed(NEVER)
    for name in CHANGES:
        monkeypatch.setattr(LocalPlace, name, counter.before(getattr(LocalPlace, name)))
    trained(root, data, algorithm)
    monkeypatch.undo()
    return NEVER - counter.left


@pytest.mark.dear("nine processes that are killed")
@pytest.mark.parametrize(
    ("data", "algorithm"),
    but_first([(2, "scaffold"), (3, "d_psgd")], [(2, "d_psgd"), (3, "scaffold")]),
    indirect=["data"],
)
def test_a_run_killed_at_some_writes_goes_on_to_the_same_bits(
    train_in_a_fork, data, tmp_path, monkeypatch, algorithm
) -> None:
    digest = trained(tmp_path / "whole", data, algorithm).digest
    calls = calls_of_a_run(tmp_path / "counted", data, monkeypatch, algorithm)
    assert calls > 50
    shown = set()
    for kill in np.linspace(0, calls - 1, SAMPLE).round().astype(int):
        root = tmp_path / f"killed{kill}"
        assert train_in_a_fork(at_each_call_of_a_place, kill, root, data, algorithm) == -signal.SIGKILL
        shown.add(check_and_go_on(root, data, digest, algorithm))
    assert shown == {0, 1, 2, 3}


@SLOW
@pytest.mark.parametrize("where", [at_each_call_of_a_place, at_each_call_of_the_system])
@pytest.mark.timeout(900)
def test_a_run_killed_at_each_write_goes_on_to_the_same_bits(train_in_a_fork, data, tmp_path, where) -> None:
    digest, shown = trained(tmp_path / "whole", data).digest, set()
    for kills in itertools.count():
        root = tmp_path / f"killed{kills}"
        exit_code = train_in_a_fork(where, kills, root, data, "scaffold")
        shown.add(check_and_go_on(root, data, digest))
        if not exit_code:
            break
        assert exit_code == -signal.SIGKILL
    assert kills > 50
    assert shown == {0, 1, 2, 3}
