"""One Prefect server for all tests of flows, and networks that were trained apart for those of merging."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundweave.flows.reporting.progress import FlowPage
from tests import training
from tests.flows.prefect_server import PrefectServer


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """The Prefect server of all tests; those that need it run in one process, as this fixture's name says."""
    running = PrefectServer(tmp_path_factory.mktemp("root") / ".prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(running.home))  # also of flows that report to none
        yield running
    running.kill()


@pytest.fixture
def server(prefect: PrefectServer) -> PrefectServer:
    """A Prefect server that a user has started; it works, whatever tests did to it before."""
    prefect.mend()
    return prefect


@pytest.fixture
def environment(server: PrefectServer, tmp_path: Path) -> dict[str, str]:
    """A Prefect server's address and a root for runs, as a user's shell would have them."""
    own = {"ROUNDWEAVE_ROOT": str(tmp_path / "runs"), "PREFECT_LOGGING_LEVEL": "ERROR", "COLUMNS": "200"}
    polls = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
    return server.environment | own | polls | {"PREFECT_API_URL": server.api}


@pytest.fixture(scope="module", autouse=True)
def _one_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Flows of a module that is marked `prefect` report to one server; those of others are plain functions."""
    assert "PREFECT_API_URL" not in os.environ, "a test has left an address of a server behind"
    if request.node.get_closest_marker("prefect") is None:
        request.getfixturevalue("without_prefect")
        yield
        return
    prefect = request.getfixturevalue("prefect")
    prefect.mend()
    with prefect.reported_to():
        yield


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's pages have none, as each takes a fifth of a small run's time."""
    monkeypatch.setattr(FlowPage, "leave_plot", lambda page, figure, kind: None)


APART = {"data": "digits", "partitions": 1, "local_epochs": 5, "lr": 0.1}
KINDS = {
    "mlp": {"model": "mlp", "model_options": {"hidden": 64}, "rounds": 2},
    "cnn": {"model": "cnn", "model_options": {"channels": 8}, "rounds": 1},
}


@pytest.fixture(scope="session")
def apart() -> object:
    """Train networks of a kind with seeds of their own under a root, as ``mlp0``, ``mlp1`` and so on."""

    def train(root: Path, kind: str, count: int) -> None:
        for seed in range(count):
            training.trained(root, **APART, **KINDS[kind], seed=seed, name=f"{kind}{seed}")

    return train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, apart) -> Path:
    """A root with three mlps and two cnns, which no test changes."""
    root = tmp_path_factory.mktemp("trained")
    apart(root, "mlp", 3)
    apart(root, "cnn", 2)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A root with three mlps and two cnns."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("runs") / "root"))
