"""What a merge cannot mean is refused before it begins, in one line that says what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.flows.merging.preparing import plan_merge
from tests.refusals.merging import ROWS
from tests.tasks.merging import mine

PLAIN = {"networks": ("a.pt", "b.pt"), "model": "mine.py:layers", "input": "2x6", "out": "out.safetensors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the networks that rows name, and the user's file."""
    folder = tmp_path_factory.mktemp("merges")
    shutil.copy(mine.__file__, folder)
    for name in ("a", "b", "c", "base"):
        torch.save(mine.layers().state_dict(), folder / f"{name}.pt")
    return folder


@pytest.mark.parametrize(
    ("fields", "words"), [pytest.param(*row, id=f"merging-{n}") for n, row in enumerate(ROWS)]
)
def test_a_merge_is_refused_in_a_line(fields: dict[str, Any], words: str, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    given = {name: value for name, value in (PLAIN | {"executor": "inline"} | fields).items() if value is not None}
    with pytest.raises(rw.RoundweaveError, match=re.escape(words)) as refused:
        plan_merge(rw.MergeConfig(**given))
    assert "\n" not in str(refused.value)
    assert not (folder / "out.safetensors").exists()
