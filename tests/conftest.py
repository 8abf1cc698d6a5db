"""Fixtures: small experiments, clusters of real worker processes, and runs without Prefect around them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from roundweave.flows.serving import server
from roundweave.flows.serving.server import stop_server
from roundweave.flows.stored import Run
from roundweave.storage.places import local
from roundweave.tasks.executors.clusters import fork_server
from tests.patience import PATIENCE
from tests.runs import copied
from tests.times import Times
from tests.training import trained

if TYPE_CHECKING:
    from distributed import Client

    from tests.machines import Network
    from tests.storage.places.s3_server import S3Server

Train = Callable[..., Run]

collect_ignore = [*(f"benchmarks/peers/{peer}" for peer in ("blazefl", "fedjax", "flower", "pfl")), "pretend"]
"""They run in environments and processes of their own, with packages and a device that are not here."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell begins what goes on in the background, and no process that a test starts would hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # no test asserts a time
settings.load_profile("untimed")
server.START_SECONDS = 600  # else a training on a busy machine goes on without its server


GROUPS = ("cluster", "prefect", "s3", "trained")
"""What is begun once a session: all tests that use one of these run in the same process, and begin first."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times(config), "times")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collection, which would take two fifths of the time, since what is imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share what is begun once a session, or their file, run in the same process."""
    order = {}
    for item in items:
        named = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
        group = next((group for group in GROUPS if group in named), None)
        order[item] = GROUPS.index(group) if group else len(GROUPS)
        item.add_marker(pytest.mark.xdist_group(group or str(item.path)))
    items.sort(key=order.__getitem__)


@pytest.fixture(scope="session")
def _workers_are_forks() -> None:
    """Of a process that has what is in the environment of all tests, and nothing that only one has."""
    fork_server.begin()


@pytest.fixture(scope="session", autouse=True)
def syncs() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """What syncs a file, and a file system; neither does, since a small run would mostly wait for the disk."""
    synced = os.fsync, local.sync_file_system
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(local, "sync_file_system", lambda descriptor: None)
        yield synced


@pytest.fixture(autouse=True)
def _runs_under_tmp(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Runs lie in the test's own folder, made if the test asks for one, and no server outlives the test."""
    base = tmp_path_factory.getbasetemp() / str(id(request.node))
    root = (request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else base) / "runs"
    monkeypatch.setenv("ROUNDWEAVE_ROOT", str(root))
    yield
    stop_server(root)


@pytest.fixture(scope="module")
def without_prefect() -> Iterator[None]:
    """Flows in this process are plain functions, as where no server starts: Prefect takes most of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roundweave.flows.serving.ahead.prefect_server", lambda root: nullcontext())
        patch.setattr("roundweave.flows.serving.ahead.prefect_api", lambda root: nullcontext())
        yield


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    """A server of S3, which takes a second to start."""
    from tests.storage.places.s3_server import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server of S3, in the environment of the test."""
    for name, value in s3_process.environment.items():
        monkeypatch.setenv(name, value)
    return s3_process


@pytest.fixture(scope="session")
def mnist() -> str:
    """The `data` of a config: real MNIST where it lies, else scikit-learn's digits."""
    folder = Path(os.environ.get("ROUNDWEAVE_DATA", "nowhere")) / "mnist"
    return f"mnist:{folder}" if folder.is_dir() else "digits"


@pytest.fixture(scope="session")
def cluster(_workers_are_forks: None) -> Iterator[Client]:
    """A Dask cluster of two workers, for all tests that need one as any user has it."""
    from roundweave.tasks.executors.clusters.connecting import connect

    with connect(None, 2) as client:
        yield client


@pytest.fixture
def client(cluster: Client) -> Client:
    """Of two workers: who was lost before is there again."""
    cluster.wait_for_workers(2, timeout=PATIENCE)
    return cluster


@pytest.fixture(scope="session")
def _stored_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of `tests.runs`, one for all processes of this session."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "stored"


@pytest.fixture
def stored(_stored_once: Path, tmp_path: Path) -> Callable[[str], Run]:
    """Opens a copy of one of the runs of `tests.runs`, by its name, under the root of the test."""
    return lambda name: copied(_stored_once, name, tmp_path / "runs")


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Run a configuration with an executor, window by window, without Prefect."""

    return partial(trained, tmp_path / "runs")


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """Write a mine.py; gives the reference to one of its functions."""

    def write(source: str, name: str = "mine") -> str:
        (tmp_path / f"{name}.py").write_text(source)
        return str(tmp_path / f"{name}.py")

    return write


@pytest.fixture
def fields(own) -> dict[str, object]:
    """The experiment of `tests.tasks.executors.deeds`, which imports Dask: before pytest has its handlers that
    would silence those of the fixture `caplog`."""
    from tests.tasks.executors.deeds import experiment

    return experiment(own)


@pytest.fixture
def do(tmp_path: Path) -> Callable[..., None]:
    """Have something done in the map of a partition of that experiment; see `have_done`."""
    from tests.tasks.executors.deeds import have_done

    return partial(have_done, tmp_path)


@pytest.fixture
def flip() -> Callable[[Path, int], None]:
    """Flip one bit of a file; the byte counts from the start, or from the end where it is negative."""

    def flip_bit(path: Path, byte: int = 0) -> None:
        content = bytearray(path.read_bytes())
        content[byte] ^= 1
        path.write_bytes(content)

    return flip_bit


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """As maps have; several would mostly wait for one another in vectors as short as those of tests."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    yield
    after = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    assert after == before, "a step left another number of threads, or of determinism, behind"


@pytest.fixture
def dask_processes(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a Dask scheduler and workers as processes of their own in a folder; gives the scheduler's file."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, workers: int = 2, **last: str) -> str:
        """The last worker with more in its environment."""
        file = tmp_path / "scheduler.json"
        place = ["--scheduler-file", str(file), "--no-dashboard"]
        commands = [["scheduler", "--port", "0", "--host", "127.0.0.1"]]
        commands += [["worker", "--nthreads", "1", "--no-nanny"]] * workers
        for number, command in enumerate(commands):
            environment = os.environ | (last if number == workers else {})
            # As a module: it looks for modules in its folder first, as notebooks and some cluster managers do.
            line = [sys.executable, "-m", "dask", *command, *place]
            with (tmp_path / "dask.log").open("ab") as log:
                started.append(subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, env=environment))
            while not file.exists() or not file.stat().st_size:
                time.sleep(0.1)
        return str(file)

    yield start
    for process in reversed(started):
        process.kill()
        process.wait()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Machines with networks and folders of their own; see `tests.machines`."""
    from tests.machines import Network

    with Network(tmp_path) as network:
        yield network
