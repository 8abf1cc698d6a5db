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
    kept = "committed rounds are kept; `roundweave resume long` continues"
    assert (error.output_type, error.traceback) == ("error", [f"interrupted; {kept}"])
    assert notebook.cells[3].outputs[0].data["text/plain"] == "('complete', 'interrupted')"


OWN = """
import torch
import roundweave as rw

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, images):
        return self.layer(images.flatten(1))
"""
GOES_ON = """
config = rw.TrainConfig(model=Net, rounds={rounds}, executor="inline", name="own")
rw.train(config).done
"""


@pytest.mark.filterwarnings("default")  # of nbclient's own libraries
@pytest.mark.slow
def test_a_notebook_that_is_run_again_goes_on_with_its_run(tmp_path: Path, monkeypatch) -> None:
    """In another kernel, below a line that was added; a class that changed is refused in one line."""
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    texts = {"2": OWN, "3": f"# A comment.\n{OWN}", "4": OWN.replace("images.flatten(1)", "2 * images.flatten(1)")}
    shown = []
    for rounds, text in texts.items():
        cells = [nbformat.v4.new_code_cell(each) for each in (text, GOES_ON.format(rounds=rounds))]
        notebook = nbformat.v4.new_notebook(cells=cells)
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=PATIENCE, allow_errors=True, resources=place).execute()
        shown.append(notebook.cells[1].outputs[-1])
    assert [output.data["text/plain"] for output in shown[:2]] == ["2", "3"]
    line, error = shown[2].traceback
    assert "rw.train(config)" in line and "own is another experiment (model Net, of which Net changed)" in error
