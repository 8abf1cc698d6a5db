"""`rw.train` where people look at it: in a notebook's kernel, and in a script."""

from __future__ import annotations

import os
import subprocess
import sys
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
    rw.train(rw.TrainConfig(partitions=2, rounds=5000, executor="{executor}", name="long"))
"""


@pytest.fixture(scope="module", autouse=True)
def _one_server() -> None:
    """None: these tests have processes of their own."""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's: no Prefect API, and runs beneath this folder."""
    for key in [key for key in os.environ if key.startswith("PREFECT")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.mark.filterwarnings("default")  # of nbclient's own libraries
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_notebook_shows_progress_and_an_interrupted_cell_says_so_in_a_line(
    environment, tmp_path: Path, executor: str
) -> None:
    import nbformat

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


@pytest.mark.slow
def test_a_script_prints_nothing_that_it_was_not_told_to(environment, tmp_path: Path) -> None:
    script = f"if __name__ == '__main__':\n{CELL.format(name='script').replace(chr(10), chr(10) + '    ')}"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
