"""The facade: every name is there, typed, found by completion, and loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import roundweave as rw

ROOT = Path(rw.__file__).parent
HEAVY = {"torch", "numpy", "prefect", "distributed", "zarr", "pandas", "pydantic"}

OWN = """
import roundweave as rw

run: rw.Run = rw.open_run("first")
reduce: rw.Reduce = rw.TrimmedMean(1)
config = rw.TrainConfig(data="digits", rounds=3)
done: int = run.done
reveal_type(rw.Mean())
"""


@pytest.mark.parametrize("name", dir(rw))
def test_every_name_is_there(name: str) -> None:
    assert getattr(rw, name).__name__ == name


def test_a_name_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"roundweave has no 'trian'; it has .*train"):
        rw.trian  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    script = f"import sys, roundweave\nassert not {HEAVY} & set(sys.modules)\nassert 'train' in dir(roundweave)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_types_are_known_to_mypy(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    line = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "own.py"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=False, text=True)
    assert 'Revealed type is "tasks.reduces.mean.Mean"' in done.stdout
    assert "error" not in done.stdout, done.stdout
