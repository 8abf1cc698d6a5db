"""Folders `flows/`, `storage/` and a `tasks.py` of the user's own are theirs, and ours are ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.tasks.own_code.code import find_code
from tests.training import trained

HERE = Path(__file__).parents[2]
FILES = {
    "flows/__init__.py": "from .nightly import RATE",
    "flows/nightly.py": "RATE = 2.0",
    "tasks.py": "WIDTH = 8",
    "storage/rows.py": "COUNT = 60",
    "mine.py": """
import roundweave as rw
import torch
import flows
import tasks
from storage import rows
def data():
    inputs = torch.randn(rows.COUNT, 4, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, tasks.WIDTH), torch.nn.Tanh(), torch.nn.Linear(tasks.WIDTH, 2))
def loss(outputs, targets):
    from flows.nightly import RATE
    assert rw.Mean is __import__("roundweave.tasks.algorithms.reduces.mean", fromlist=["Mean"]).Mean
    return torch.nn.functional.cross_entropy(outputs, targets) * RATE * flows.RATE
""",
}
THEIR_NAMES = r"(?<!roundweave\.)\b(flows|tasks|storage)\b"
OURS = "import roundweave as rw\nfrom roundweave import flows as f, storage as s, tasks as t\n"
THEIRS = "import flows, tasks, storage.rows\nfrom mine import data, loss, model\n"
TRAIN = """
if __name__ == "__main__":
    assert (flows.RATE, tasks.WIDTH, storage.rows.COUNT) == (2.0, 8, 60)
    assert [module.__name__.partition(".")[0] for module in (f, s, t)] == ["roundweave"] * 3
    given = {"data": data, "model": model, "loss": loss, "partitions": 2, "rounds": 2, "workers": 1, "name": "own"}
    print(rw.train(rw.TrainConfig(**given)).digest)
"""
REFERENCES = {"data": "mine.py:data", "model": "mine.py:model", "loss": "mine.py:loss"}
FIELDS = {**REFERENCES, "partitions": 2, "rounds": 2, "workers": 1, "name": "own"}
COMMAND = ["-m", "roundweave.flows.command.app", "train", *(f"--{name}={value}" for name, value in FIELDS.items())]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder; processes that stand in it find this Roundweave elsewhere."""
    for name, text in FILES.items():
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(text)
    for name in [name for name in os.environ if name.startswith("PREFECT")]:
        monkeypatch.delenv(name)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/roundweave").symlink_to(HERE / "roundweave")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))  # as where it is installed: no name beside it
    return tmp_path / "work"


def run_in(folder: Path, *line: str | Path) -> str:
    """What a process of Python that stands in the folder prints."""
    done = subprocess.run([sys.executable, *line], cwd=folder, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(folder: Path) -> str:
    """That of the last state of the run that was trained in the folder."""
    return rw.open_run(folder.parent / "runs/own.zarr").digest


@pytest.fixture
def expected(folder: Path, tmp_path: Path) -> str:
    """The digest of the same run whose modules are called otherwise."""
    for file, text in FILES.items():
        named, source = (re.sub(THEIR_NAMES, r"my_\1", each) for each in (file, text))
        (tmp_path / "plain" / named).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plain" / named).write_text(source)
    references = {part: f"{tmp_path}/plain/{reference}" for part, reference in REFERENCES.items()}
    return trained(tmp_path / "plain/runs", **FIELDS | references).digest


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [THEIRS + OURS + TRAIN, OURS + THEIRS + TRAIN],
    ids=["theirs first", "ours first"],
)
def test_a_script_imports_both_in_either_order_and_its_workers_do(folder, expected, script: str) -> None:
    (folder / "script.py").write_text(script)
    assert run_in(folder, "script.py").split()[-1] == expected


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "graph", "ranks"])
def test_the_command_finds_theirs_with_every_executor_and_so_does_a_replay(folder, expected, executor) -> None:
    run_in(folder, *COMMAND, f"--executor={executor}")
    assert digest(folder) == expected
    for name in FILES:
        (folder / name).unlink()
    assert "bit-identical" in run_in(folder, *COMMAND[:2], "replay", "own", "--all")


@pytest.mark.slow
def test_workers_of_a_cluster_that_was_started_in_the_folder_do(folder, expected, dask_processes) -> None:
    run_in(folder, *COMMAND, "--scheduler", dask_processes(folder))
    assert digest(folder) == expected


@pytest.mark.slow
def test_the_projects_own_checkout_may_be_the_current_folder_whatever_lies_in_it(folder) -> None:
    """A checkout has the folder `roundweave`, which the user's file beside it does not take for the user's."""
    for name in ("roundweave", "flows", "tasks", "storage"):
        (folder / "checkout").mkdir(exist_ok=True)
        (folder / "checkout" / name).symlink_to(HERE / name)
    (folder / "checkout/mine.py").write_text("import roundweave as rw\ndef reduce():\n    return rw.Mean()")
    (folder / "checkout/roundweave.toml").write_text("this is no table")
    line = [*COMMAND[:3], "--reduce=mine.py:reduce", "--rounds=1", "--executor=inline", "--name=here"]
    assert "complete" in run_in(folder / "checkout", *line)


def test_a_function_of_ours_is_imported_and_not_kept_as_a_file_of_the_users() -> None:
    """Its file is in a checkout, where its name on the disk would be `tasks.data.sources.images`."""
    from roundweave.tasks.data.sources.images import Digits

    code = find_code(Digits)
    assert (code.module, code.source, code.load()) == ("roundweave.tasks.data.sources.images", "", Digits)
