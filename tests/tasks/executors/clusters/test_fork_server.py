"""Local workers are forks of a process that has imported what they need, where that changes nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from roundweave.flows.stored import open_run
from roundweave.tasks.data.sources.table import find_source
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.fork_server import EXAMPLES, READ_BY_IMPORTS, begin, start_method
from tests.patience import PATIENCE
from tests.workers import worker_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned there")


@pytest.fixture
def as_begun(monkeypatch) -> None:
    """What stood in the environment when a test before had that process begin stands there again."""
    began = begin()
    assert began is not None
    for name in began.keys() - os.environ.keys():
        monkeypatch.setenv(name, began[name])


@pytest.mark.usefixtures("as_begun")
def test_workers_are_forks_of_one_process_with_the_environment_of_now(monkeypatch) -> None:
    monkeypatch.setenv("SOMETHING", "new")
    others = {process.pid for process in worker_processes(psutil.Process())}  # of tests before
    with connect(None, 2) as client:
        workers = set(client.run(os.getpid).values())
        told = client.run(lambda: [os.environ.get(name) for name in ("SOMETHING", "PYTHONSAFEPATH")])
        assert {process.pid for process in worker_processes(psutil.Process())} - others == workers
        (parent,) = {psutil.Process(pid).ppid() for pid in workers}
        assert psutil.Process(parent).ppid() == os.getpid()
    assert list(told.values()) == [["new", None]] * 2


@pytest.mark.usefixtures("as_begun")
def test_they_are_spawned_where_they_would_have_imported_otherwise(monkeypatch) -> None:
    began = begin()
    assert began is not None
    assert start_method() == "forkserver"
    for prefix in READ_BY_IMPORTS:
        with monkeypatch.context() as changed:
            changed.setenv(f"{prefix}SOMETHING", "new")
            assert start_method() == "spawn"
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn's import does
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/somewhere")  # as that of torch's compiler does
    assert start_method() == "forkserver"
    monkeypatch.delenv("HOME")
    assert start_method() == "spawn"


CLIENT = """
import json
import os
import sys
from roundweave.tasks.data import reading
from roundweave.tasks.executors.clusters import fork_server
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from tests.training import trained
def held():
    return " ".join(str(source) for source, _ in reading._opened)
if __name__ == "__main__":
    fork_server.begin()
    with connect(None, int(sys.argv[1])) as client:
        of_each = ([*{*client.run(told).values()}] for told in (os.getppid, os.getpid, held))
        print(json.dumps([os.getpid(), *of_each]), flush=True)
        if fields := sys.stdin.read():
            trained(os.environ["ROUNDWEAVE_ROOT"], GraphExecutor(client), **json.loads(fields), name="there")
"""


HERE = {"PYTHONPATH": str(Path(__file__).parents[4])}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process with a cluster, in a folder whose files are called as packages are."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "here").mkdir()
    for name in ("torch", "distributed", "secrets", "tasks"):
        (tmp_path / "here" / f"{name}.py").write_text("raise ZeroDivisionError")
    with ExitStack() as stack:

        def begin(workers: int, **more: str) -> subprocess.Popen[str]:
            line = [sys.executable, "-P", tmp_path / "client.py", str(workers)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(line, cwd=tmp_path / "here", env=os.environ | HERE | more, **pipes)
            stack.callback(process.kill)
            return stack.enter_context(process)

        yield begin


@pytest.mark.thorough
def test_nothing_of_the_users_folder_is_imported_and_nothing_outlives_a_client_that_is_killed(start) -> None:
    client = start(2)
    _, parents, workers, _ = json.loads(client.stdout.readline())
    family = psutil.Process(client.pid).children(recursive=True)
    assert (len(parents), len(workers)) == (1, 2)
    assert {*parents, *workers} <= {process.pid for process in family}
    os.kill(client.pid, signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


@pytest.mark.thorough
def test_they_are_spawned_where_the_process_has_no_place_for_its_socket(start, tmp_path: Path) -> None:
    (deep := tmp_path / ("long" * 25)).mkdir()
    client, parents, workers, _ = json.loads(start(1, TMPDIR=str(deep)).stdout.readline())
    assert (parents, len(workers)) == ([client], 1)


@pytest.mark.thorough
def test_they_are_forked_with_the_examples_and_read_them_again_where_they_have_changed(
    start, train, tmp_path: Path
) -> None:
    file, labels = tmp_path / "examples.npz", np.arange(200) % 2
    fields = {"data": f"npz:{file}", "model": "logistic", "partitions": 2, "rounds": 1}
    np.savez(file, x=np.zeros((200, 4), "float32"), y=labels)
    client = start(2, **{EXAMPLES: fields["data"]})
    *_, held = json.loads(client.stdout.readline())
    assert held == [str(find_source(fields["data"]))]
    np.savez(file, x=np.random.default_rng(1).normal(size=(200, 4)).astype("float32"), y=labels)
    client.communicate(json.dumps(fields))
    assert open_run("there").digest == train(**fields, name="here").digest
