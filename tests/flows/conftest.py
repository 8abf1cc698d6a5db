"""Networks of the digits that were trained apart, once for all tests of merging."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundweave.flows.reporting.progress import FlowPage
from roundweave.flows.serving.server import prefect_api, stop_server
from tests import training
from tests.flows.prefect_server import PrefectServer


@pytest.fixture(scope="session")
def server_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root whose Prefect server serves all tests of flows."""
    root = tmp_path_factory.mktemp("server")
    yield root
    stop_server(root)


@pytest.fixture(scope="module", autouse=True)
def _one_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Flows of a module that is marked `prefect` report to one server; those of others are plain functions.

    Flows in processes of their own, which have this one's environment, may be told otherwise.
    """
    assert "PREFECT_API_URL" not in os.environ, "a test has left an address of a server behind"
    if request.node.get_closest_marker("prefect") is None:
        request.getfixturevalue("without_prefect")
        yield
        return
    server_root = request.getfixturevalue("server_root")
    with prefect_api(server_root) as server:
        yield
        assert server is None or server.process.poll() is None, (server_root / ".prefect/server.log").read_text()


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's pages have none, as each takes a fifth of a small run's time."""
    monkeypatch.setattr(FlowPage, "leave_plot", lambda page, figure, kind: None)


@pytest.fixture(scope="session")
def _prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    running = PrefectServer(tmp_path_factory.mktemp("prefect"))
    yield running
    running.kill()


@pytest.fixture
def server(_prefect_server: PrefectServer) -> PrefectServer:
    """A Prefect server that a user has started; it works, whatever tests did to it before."""
    _prefect_server.mend()
    return _prefect_server


APART = {"data": "digits", "partitions": 1, "local_epochs": 5, "lr": 0.1}
KINDS = {
    "mlp": {"model": "mlp", "model_options": {"hidden": 64}, "rounds": 6},
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
