"""What a configuration cannot mean is refused before any process starts, in one line that says what to do.

Each table has rows of fields and of words that the line must have; `mine.py` has the functions that rows name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from roundweave import RoundweaveError, TrainConfig
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.tasks.data.description import gather_here
from tests.refusals import algorithms, compute, data, executors, networks, nights, storing

TABLES = (algorithms, compute, data, executors, networks, nights, storing)
ROWS = [
    pytest.param(fields, words, id=f"{table.__name__.rpartition('.')[2]}-{number}")
    for table in TABLES
    for number, (fields, words) in enumerate(table.ROWS)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the user's file that rows name."""
    return Path(shutil.copy(Path(__file__).with_name("mine.py"), tmp_path_factory.mktemp("refusals"))).parent


@pytest.mark.parametrize(("fields", "words"), ROWS)
def test_it_is_refused_in_a_line(fields: dict[str, Any], words: str, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(RoundweaveError, match=re.escape(words)) as refused:
        describe(plan(TrainConfig(**{"executor": "inline"} | fields)), gather_here)
    assert "\n" not in str(refused.value)
