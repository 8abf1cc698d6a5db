"""The notebooks in notebooks/ run from top to bottom, and are shown as they ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from roundweave.flows.serving.api_server import template
from tests.patience import PATIENCE

nbclient = pytest.importorskip("nbclient", reason="a notebook's kernel needs the development dependencies")

HERE = Path(__file__).parent.parent
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.ipynb"))


def outputs(notebook: Any) -> list[list[dict[str, Any]]]:
    """The outputs of each cell of code."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: Any) -> list[list[str]]:
    """As what each cell's outputs are shown: pictures, tables, texts."""
    return [sorted(kind for output in cell for kind in output.get("data", {})) for cell in outputs(notebook)]


@pytest.fixture
def as_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, in which no Prefect API is set and runs lie beneath."""
    for key in [key for key in os.environ if key.startswith(("PREFECT", "ROUNDWEAVE"))]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("XDG_CACHE_HOME", str(template().parents[1]))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return tmp_path


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # of nbclient's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, as_a_user: Path) -> None:
    """Its cells show what they are shown with: as many pictures, tables and texts, and no warnings."""
    import nbformat

    shown = nbformat.read(path, 4)
    ran = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(as_a_user)}}
    nbclient.NotebookClient(ran, timeout=PATIENCE, kernel_name="python3", resources=resources).execute()
    assert kinds(ran) == kinds(shown)
    assert {output.output_type for cell in outputs(ran) for output in cell} <= {"display_data", "execute_result"}
    assert sum("image/png" in cell for cell in kinds(ran)) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, 4)
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert path.stat().st_size < 500_000
    assert str(Path.home()) not in path.read_text()
    assert "/tmp/" not in path.read_text()
