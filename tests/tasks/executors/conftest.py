"""Fixtures: the experiment of `deeds`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tasks.executors.deeds import Do


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
