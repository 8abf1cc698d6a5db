"""Fixtures: one cluster of two workers for all tests of executors, and the experiment of `deeds`.

Dask is imported within fixtures: imported before pytest has its handlers, it would log past them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from distributed import Client

    from tests.tasks.executors.deeds import Do


@pytest.fixture(scope="package")
def cluster() -> Iterator[Client]:
    from roundweave.tasks.executors.clusters.connecting import connect

    with connect(None, 2) as client:
        yield client


@pytest.fixture
def client(cluster: Client) -> Client:
    """Of two workers: who was lost before is there again."""
    cluster.wait_for_workers(2, timeout=PATIENCE)
    return cluster


@pytest.fixture
def fields(own) -> dict[str, object]:
    from tests.tasks.executors.deeds import SOURCE

    path = own(SOURCE)
    parts = {"data": f"{path}:data", "model": f"{path}:Network"}
    return parts | {"partitions": 4, "rounds": 4, "local_steps": 2, "batch_size": 5, "held_out": 0}


@pytest.fixture
def do(tmp_path: Path) -> Do:
    """Have something done in the map of a partition, once a round of the run `there` is committed."""

    def write(deed: str, partition: int, round: int = 0, always: bool = False) -> None:
        (tmp_path / f"do-{partition}-{round}{'-always' if always else ''}").write_text(deed)

    return write


@pytest.fixture
def hang(do, tmp_path: Path, caplog, monkeypatch) -> Do:
    """Have the map of a partition hang until two lines about it are told."""

    from tests.tasks.executors.deeds import lines

    def goes_on_after_the_second(record: logging.LogRecord) -> bool:
        if lines(caplog):
            (tmp_path / "go-on").touch()
        return True

    monkeypatch.setattr(logging.getLogger("roundweave"), "filters", [goes_on_after_the_second])
    waits = "while not Path(__file__).with_name('go-on').exists(): time.sleep(0.1)"
    return lambda partition, round: do(waits, partition, round)
