"""The user's packages: wherever a run computes, and when it is replayed, their modules are those that it keeps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.tasks.executors.graph import GraphExecutor
from tests.flows.command.in_process import refused
from tests.flows.prefect_server import command_line

FILES = {
    "proj/__init__.py": "",
    "proj/models/__init__.py": "from .net import Net",
    "proj/models/net.py": "from torch import nn\nfrom .layers import Wide\nfrom ..sizes import WIDTH\n"
    "def Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), Wide(), nn.Linear(WIDTH, 10))",
    "proj/models/layers.py": "from torch import nn\nclass Wide(nn.Module):\n    def forward(self, x):\n"
    "        return x.relu()",
    "proj/sizes.py": "WIDTH = 16",
    "proj/loss.py": "from torch.nn import functional\nfrom scaling import scale\ndef loss(outputs, targets):\n"
    "    return functional.cross_entropy(outputs, targets) * scale()",
    "scaling.py": "def scale():\n    return 2.0",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package in which one stands."""
    for name, text in FILES.items():
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


def config(name: str, **more: object) -> rw.TrainConfig:
    fields = {"model": "proj/models/net.py:Net", "loss": "proj/loss.py:loss", "local_steps": 2, "workers": 2}
    return rw.TrainConfig(**{**fields, "partitions": 2, "rounds": 1, "name": name} | more)


def test_workers_find_the_modules_of_a_package(package, train, client) -> None:
    fields = config("there").model_dump(exclude_unset=True, exclude={"executor", "workers"})
    assert train(GraphExecutor(client), **fields).digest == rw.train(config("here", executor="inline")).digest


@pytest.mark.thorough
def test_every_executor_finds_the_modules_of_a_package(package, tmp_path, dask_processes) -> None:
    """The worker started elsewhere stands in a folder with a package of the same name."""
    (tmp_path / "elsewhere/proj").mkdir(parents=True)
    (tmp_path / "elsewhere/proj/__init__.py").write_text("raise RuntimeError('another')")
    scheduler = dask_processes(tmp_path / "elsewhere", workers=1)
    by_file = [rw.train(config(name, executor=name)).digest for name in ("inline", "ranks")]
    by_name = {"model": "proj.models:Net", "loss": "proj.loss:loss", "scheduler": scheduler}
    elsewhere = rw.train(config("elsewhere", executor="graph", **by_name)).digest
    assert {*by_file, elsewhere} == {by_file[0]}


@pytest.mark.thorough
def test_a_replay_needs_no_file_and_code_from_elsewhere_needs_trust(package, tmp_path, capsys) -> None:
    run = rw.train(config("run", executor="inline"))
    shutil.rmtree(package / "proj")
    (package / "scaling.py").write_text("def scale():\n    return 3.0")
    foreign = shutil.copytree(run.path, tmp_path / "theirs/run.zarr")
    replay = ["replay", "--all", "--executor", "inline", str(foreign)]
    code, line = refused(capsys, *replay)
    assert (code, "holds code" in line) == (2, True)
    trusted = subprocess.run(command_line(*replay, "--trust"), capture_output=True, text=True, check=True)
    assert "bit-identical" in trusted.stdout


SCRIPT = """
import sys, helper
from distributed import Client
from roundweave.storage.errors import NumericsMismatch
from roundweave.tasks.executors.graph import GraphExecutor
from tests.training import trained
def model(): return helper.Net()
with Client(scheduler_file=sys.argv[1]) as client:
    client.wait_for_workers(2)
    try:
        trained(sys.argv[2], GraphExecutor(client), model=model, partitions=4, rounds=1, local_steps=1)
    except NumericsMismatch as error:
        print(error)
"""
HELPER = "from torch import nn\ndef Net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.{}())"


@pytest.mark.thorough
def test_a_worker_that_imports_another_version_of_a_module_is_refused(
    tmp_path, dask_processes, monkeypatch
) -> None:
    """Until it is started anew, also where the file has become the same since."""
    for folder, layer in (("here", "Identity"), ("there", "Tanh")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(HELPER.format(layer))
    (tmp_path / "script.py").write_text(SCRIPT)
    project = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'here'}:{project}")
    scheduler = dask_processes(tmp_path, 2, PYTHONPATH=f"{tmp_path / 'there'}:{project}")
    line = [sys.executable, tmp_path / "script.py", scheduler, tmp_path / "runs"]
    for _ in range(2):
        said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        assert said.startswith("tcp://127.0.0.1:")
        assert "has another version of helper.Net than the process that began the run" in said
        shutil.copy(tmp_path / "here/helper.py", tmp_path / "there")
    assert not [*(tmp_path / "runs").glob("*.zarr")]
