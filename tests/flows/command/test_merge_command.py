"""The commands `merge` and `units`: good input and bad, exit codes, and what a person or a machine reads."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.writing import write_checkpoint
from tests.flows.command.in_process import WITHOUT_PREFECT, refused, run, said
from tests.flows.prefect_server import command_line
from tests.storage.checkpoints.reading import read_checkpoint

MINE = """
import torch
from torch import nn
def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()
def inputs():
    return torch.zeros(3, 4)
def number():
    return 5
def fails():
    raise ZeroDivisionError("no inputs today")
class Pair(nn.Sequential):
    def forward(self, inputs):
        hidden = self[0](inputs).relu()
        return self[2](hidden), hidden
def pair():
    return Pair(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
def of_first(outputs, targets):
    return nn.functional.cross_entropy(outputs[0], targets)
class Cumulative(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).cumsum(1)
def cumulative():
    return nn.Sequential(Cumulative(4, 3), nn.Linear(3, 2))
"""


@pytest.fixture(scope="module")
def work(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of networks, good and bad."""
    work = tmp_path_factory.mktemp("work")
    (work / "mine.py").write_text(MINE)
    write_checkpoint(work / "good.pt", read_checkpoint("mlp0@-1", root))
    (work / "text.safetensors").write_text("no tensors")
    (work / "folder.pt").mkdir()
    for seed in range(2):
        torch.manual_seed(seed)
        small = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        write_checkpoint(work / f"small{seed}.pt", small.state_dict())
    return work


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """In a process of its own the command is quiet; here Prefect was imported before."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def quiet(capsys, *arguments: str) -> str:
    """What a command prints that ends well and says nothing else."""
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def placed(arguments: list[str], work: Path) -> list[str]:
    """The arguments with the folder of files in them."""
    return [argument.replace("{work}", str(work)) for argument in arguments]


MLPS = ["mlp0@-1", "mlp1@-1"]
SMALL = ["{work}/small0.pt", "{work}/small1.pt", "--model", "{work}/mine.py:model"]
OWN = [*SMALL, "--data", "{work}/mine.py:data"]


BAD = {
    "no network": ([], 2, "Missing argument 'networks'"),
    "unknown match": ([*MLPS, "--match", "units"], 2, "'units' is not one of 'weights', 'activations', 'mixed',"),
    # Networks that cannot be had.
    "unknown run": (["mlp0@-1", "nowhere@-1"], 1, "no run 'nowhere' under"),
    "missing round": (["mlp0@-1", "mlp1@99"], 1, "no committed round 99"),
    "run without round": (["mlp0@-1", "mlp1"], 1, "mlp1@-1 is the last round"),
    "missing file": (["mlp0@-1", "{work}/god.pt"], 1, "there is no such file; did you mean good.pt"),
    "folder": (["mlp0@-1", "{work}/folder.pt"], 1, "folder.pt is a folder without tensors; name a file, or"),
    "other architecture": (["mlp0@-1", "cnn0@-1"], 1, "cnn0@-1 lacks 'fc1.weight'"),
    "no tensors": (["mlp0@-1", "{work}/text.safetensors"], 1, "is truncated, corrupt or no checkpoint"),
    # What the network is, and its inputs.
    "no model": (["{work}/good.pt", "{work}/good.pt"], 2, "no model is named; give --model"),
    "no module": ([*SMALL[:2], "--model", "{work}/mine.py:number", "--input", "2x4"], 1, "must return a"),
    "outputs of a pair": (
        [*SMALL[:3], "{work}/mine.py:pair", *OWN[4:], "--loss", "{work}/mine.py:of_first"],
        1,
        "the network gives a tuple without logits",
    ),
    "input of integers": ([*SMALL, "--input", "int64:2x4"], 1, "the model fails on inputs of shape (2, 4) int64"),
    "input fails": ([*SMALL, "--input", "{work}/mine.py:fails"], 2, "ZeroDivisionError: no inputs today"),
    "none held out": ([*OWN, "--held-out", "0"], 1, "held-out examples"),
    "too few examples": ([*MLPS, "--match", "activations", "--examples", "50"], 2, "examples"),
    # Where it goes.
    "out is a folder": ([*MLPS, "--out", "{work}/folder.pt"], 2, "no network has a config.json for the folder"),
    "name taken": ([*MLPS, "--name", "mlp0"], 2, "mlp0.zarr exists already; give the merge another --name"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_leaves_nothing(capsys, root, work, case) -> None:
    arguments, code, says = BAD[case]
    before = sorted(root.iterdir()), sorted(work.iterdir())
    given = [*placed(arguments, work), "--executor", "inline", "--root", str(root)]
    found, line = refused(capsys, "merge", *given)
    assert (found, says in line) == (code, True), line
    assert (sorted(root.iterdir()), sorted(work.iterdir())) == before


def test_an_error_is_told_to_machines_too(capsys, root) -> None:
    here = ["--executor", "inline", "--root", str(root), "--json"]
    code, out, err = run(capsys, "merge", "mlp0@-1", "mlp1@99", *here)
    assert (code, json.loads(out)) == (1, {"status": "failed", "error": err.removeprefix("error: ").rstrip("\n")})


# Good input.


def test_a_merge_in_json(capsys, root, tmp_path) -> None:
    out = tmp_path / "merged.safetensors"
    given = ["--points", "2", "--average", "mean", "--match", "weights", "--repair", "--executor", "inline"]
    here = ["--out", str(out), "--name", "in-json", "--root", str(root), "--json"]
    line = quiet(capsys, "merge", *MLPS, *given, *here)
    result = json.loads(line.splitlines()[-1])
    found = open_run(result["run"], root)
    assert Path(result["path"]) == found.path
    parents = [f"parent {place}" for place in MLPS]
    assert list(result["scores"]) == [*parents, "ensemble", "plain mean", "merged", "merged, repaired"]
    assert found.round(1).score.loss == result["scores"][result["chosen"]]["loss"]
    assert {name: len(path) for name, path in result["paths"].items()} == dict.fromkeys(result["barriers"], 2)
    assert (result["coefficients"], len(result["moved"])) == ([0.5, 0.5], 2)
    assert result["function_error"] <= 1e-10
    assert read_checkpoint(out).keys() == read_checkpoint("mlp0@-1", root).keys()
    assert Path(result["plot"]) == tmp_path / "merged.png"
    assert (tmp_path / "merged.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_merge_for_people(capsys, root, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    given = ["--coefficients", "1,3", "--average", "mean", "--match", "none", "--points", "2", "--name", "told"]
    out = quiet(capsys, "merge", *MLPS, *given, "--executor", "inline", "--root", str(root))
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert {"parent mlp0@-1", "parent mlp1@-1", "ensemble", "plain mean", "merged"} <= rows.keys()
    score = open_run("told", root).round(1).score
    assert f"{score.loss:.4f}" in rows["merged"] and f"{score.accuracy:.2%}" in rows["merged"]
    assert "coefficients: 0.25, 0.75" in out
    assert str(open_run("told", root).path) in out
    said(capsys, "show", "told", "--root", str(root))
    code, line = refused(capsys, "resume", "told", "--root", str(root))
    assert (code, "told is a merge" in line) == (2, True)


def test_three_networks_without_data_are_not_scored(capsys, work, root, tmp_path) -> None:
    """And a name with brackets is told as it is."""
    given = [*placed([*SMALL, SMALL[0]], work), "--input", "2x4", "--out", f"{tmp_path}/[blue].pt"]
    out = quiet(capsys, "merge", *given, "--executor", "inline", "--root", str(root))
    assert ("nothing is scored" in out, f"{tmp_path}/[blue].pt" in out) == (True, True)


def test_units_in_json(capsys) -> None:
    small = ["--model", "mlp", "--model-options", '{"hidden": 5}', "--input", "2x3"]
    report = json.loads(quiet(capsys, "units", *small, "--json"))
    members = [("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)]
    (group,) = report["groups"].values()
    assert (group["units"], group["depends_on"]) == (5, [])
    assert sorted((m["tensor"], m["axis"]) for m in group["members"]) == sorted(members)
    assert list(report["pinned"]) == ["fc2.bias"]
    assert (report["coverage"], report["unknown"]) == (0.75, {})
    assert (report["free_units"], report["pinned_units"]) == (5, {"input": 3, "output": 10})
    assert report["function_error"] <= 1e-10


def test_units_for_people(capsys, work, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = quiet(capsys, "units", "--model", "cnn", "--data", "digits")
    assert "conv1.weight[0], conv1.bias[0], norm1.weight[0]" in out
    assert "pinned: spatial" in out
    assert "93% of the tensors can be permuted" in out
    assert "no interchangeable units" in quiet(capsys, "units", "--model", "linear", "--input", "2x4")
    own = placed(["--model", "{work}/mine.py:cumulative", "--input", "{work}/mine.py:inputs"], work)
    assert "cumsum" in quiet(capsys, "units", *own)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--model", "mpl"], 2, "unknown model 'mpl'; did you mean mlp?"),
        (["--model", "mlp"], 2, "give --data, or --input"),
        (["--model", "mlp", "--input", "float16:2x4"], 2, "--input 'float16:2x4' is no shape such as 2x3x32x32"),
        (["--model", "cnn", "--input", "2x4"], 1, "the cnn reads images of shape"),
        (["--model", "{work}/mine.py:model", "--input", "2x9"], 1, "the model fails on inputs of shape (2, 9"),
        (["mlp0@-1"], 2, "unexpected extra argument"),
    ],
)
def test_bad_input_to_units_is_one_clear_line(capsys, work, arguments, code, says) -> None:
    found, line = refused(capsys, "units", *placed(arguments, work))
    assert (found, says in line) == (code, True), line


@pytest.mark.thorough
def test_the_command_in_a_process_of_its_own_is_quiet_and_gives_the_same_bits(capsys, root, tmp_path) -> None:
    given = ["merge", *MLPS, "--points", "2", "--json", "--executor", "inline", "--root", str(root), "--name"]
    environment = WITHOUT_PREFECT | {"HOME": str(tmp_path)}
    line = command_line(*given, "apart")
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["run"] == "apart"
    quiet(capsys, *given, "here")
    assert open_run("apart", root).digest == open_run("here", root).digest
