"""`rw.train` where people look at it: in a notebook's kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.patience import PATIENCE

nbclient = pytest.importorskip("nbclient", reason="a notebook's kernel needs the development dependencies")

CELL = """
import roundweave as rw
config = rw.TrainConfig(partitions=2, local_steps=2, rounds=2, executor="inline", name="{name}")
run = rw.train(config)
"""
LONG = """
import _thread
import roundweave as rw
from roundweave.flows.reporting.listening import Listener, listening

class Interrupting(Listener):
    def committed(self, commit, rounds):
        if commit.round == 3:
            _thread.interrupt_main()

with listening(Interrupting()):
    rw.train(rw.TrainConfig(partitions=2, rounds=5000, executor="{executor}", keep="last:1", name="long"))
"""


@pytest.fixture(scope="module", autouse=True)
def _one_server() -> None:
    """None: these tests have processes of their own."""


@pytest.mark.filterwarnings("default")  # of nbclient's own libraries
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_notebook_shows_progress_and_an_interrupted_cell_says_so_in_a_line(
    tmp_path: Path, monkeypatch, executor: str
) -> None:
    """In an environment as a user's: no Prefect API, and runs beneath the folder."""
    import nbformat

    for key in [key for key in os.environ if key.startswith("PREFECT")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    status = "run.status, rw.open_run('long').status"
    texts = [CELL.format(name="first"), CELL.format(name="second"), LONG.format(executor=executor), status]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=PATIENCE, allow_errors=True, resources=place).execute()
    for cell in notebook.cells[:2]:
        (output,) = cell.outputs
        assert output.output_type == "display_data", output
        assert "2/2" in output.data["text/plain"]
        assert "accuracy" in output.data["text/html"]
    *shown, error = notebook.cells[2].outputs
    assert [output.output_type for output in shown] == ["display_data"], shown
    kept = "committed rounds are kept, `roundweave resume long` goes on"
    assert (error.output_type, error.traceback) == ("error", [f"interrupted; {kept}"])
    assert notebook.cells[3].outputs[0].data["text/plain"] == "('complete', 'interrupted')"
