"""Local workers are forks of a process that has imported what they need, where that changes nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from roundweave.tasks.data.sources.table import find_source
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.fork_server import READ_BY_IMPORTS, begin, start_method
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
    with monkeypatch.context() as changed:
        changed.delenv("HOME")
        assert start_method() == "spawn"
    with monkeypatch.context() as changed:
        changed.setenv("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn's import does
        changed.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/somewhere")  # as that of torch's compiler does
        assert start_method() == "forkserver"


CLIENT = """
import json
import os
import sys
from roundweave.tasks.executors.clusters.connecting import connect
if __name__ == "__main__":
    with connect(None, int(sys.argv[1])) as client:
        parents, workers = ({*client.run(told).values()} for told in (os.getppid, os.getpid))
        print(json.dumps([os.getpid(), [*parents], [*workers]]), flush=True)
        sys.stdin.read()
"""


def test_they_are_spawned_where_the_process_has_no_place_for_its_socket(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    (deep := tmp_path / ("long" * 25)).mkdir()
    command, environment = [sys.executable, tmp_path / "client.py", "1"], {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run(command, input="", capture_output=True, text=True, env=environment, check=True)
    client, parents, workers = json.loads(done.stdout)
    assert (parents, len(workers)) == ([client], 1)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a cluster, in a folder whose files are called as packages are."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "here").mkdir()
    for name in ("torch", "distributed", "secrets", "tasks"):
        (tmp_path / "here" / f"{name}.py").write_text("raise ZeroDivisionError")
    process = subprocess.Popen(
        [sys.executable, "-P", tmp_path / "client.py", "2"],
        cwd=tmp_path / "here",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_nothing_of_the_users_folder_is_imported_and_nothing_outlives_a_client_that_is_killed(client) -> None:
    _, parents, workers = json.loads(client.stdout.readline())
    family = psutil.Process(client.pid).children(recursive=True)
    assert (len(parents), len(workers)) == (1, 2)
    assert {*parents, *workers} <= {process.pid for process in family}
    os.kill(client.pid, signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


READ_AHEAD = """
import os
import sys
import time

import numpy as np
import roundweave as rw
from roundweave.tasks.data import reading
from roundweave.tasks.executors.clusters import fork_server
from roundweave.tasks.executors.clusters.connecting import connect


def examples(seed):
    labels = np.arange(200) % 2
    np.savez(file, x=np.random.default_rng(seed).normal(size=(200, 4)).astype("float32"), y=labels)


def held():
    return [str(source) for source, _ in reading._opened]


def digest(executor):
    config = rw.TrainConfig(data=data, rounds=1, partitions=2, executor=executor, name=executor, root=sys.argv[1])
    return rw.train(config, bar=False).digest


if __name__ == "__main__":
    file = f"{sys.argv[1]}/examples.npz"
    data = f"npz:{file}"
    examples(0)
    os.environ[fork_server.EXAMPLES] = data
    fork_server.begin()
    with connect(None, 2) as client:
        for sources in client.run(held).values():
            print(*sources)
    examples(1)
    print(digest("graph") == digest("inline"))
"""


@pytest.mark.slow
def test_workers_are_forked_with_the_examples_and_read_them_again_where_they_have_changed(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READ_AHEAD)
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    line = [sys.executable, str(tmp_path / "reads.py"), str(tmp_path)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    held = str(find_source(f"npz:{tmp_path}/examples.npz"))
    assert done.stdout.splitlines() == [held, held, "True"], done.stderr
