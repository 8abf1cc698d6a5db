"""`roundweave export` and `roundweave report`, with good input and bad."""

from __future__ import annotations

import json
import re

import pytest
import safetensors.torch
import torch

import roundweave as rw
from tests.counting import counting
from tests.flows.command.in_process import refused, said, told

FIELDS = {"rounds": 2, "local_steps": 2, "partitions": 2}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.fixture
def plain(stored):
    return stored("plain")


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [("float32", "safetensors"), ("bfloat16", "pt")],  # the second no type of numpy's
)
def test_a_round_goes_out_and_in_with_the_same_bits(train, own, tmp_path, capsys, dtype, suffix) -> None:
    """Buffers of BatchNorm, tied weights and frozen parameters among them; the new run begins where it was."""
    own_code = counting(own) | {"partitions": 3, "dtype": dtype}
    before = train(**own_code, rounds=1, name="first").round(1)
    file = tmp_path / f"model.{suffix}"
    assert said(capsys, "export", "first@1", "--to", str(file)) == f"first@1 is now in {file}\n"
    load = safetensors.torch.load_file if suffix == "safetensors" else torch.load
    assert same(load(file), before.tensors)
    after = train(**own_code, rounds=2, name="second", start_from=str(file))
    assert same(after.round(0).tensors, before.tensors)
    assert rw.open_run("second").replay("all").identical
    resumed, whole = (train(**own_code, rounds=3, name=n, start_from=str(file)) for n in ("second", "whole"))
    assert resumed.digest == whole.digest


def test_best_and_last_are_rounds(plain, tmp_path, capsys) -> None:
    best = max((1, 2, 3), key=lambda number: plain.round(number).score.accuracy)
    for which, number in {"last": 3, "-1": 3, "best": best}.items():
        file, wanted = tmp_path / f"{which}.pt", plain.round(number)
        answer = {"exported": f"plain@{which}", "to": str(file), "run": "plain", "round": number}
        answer |= {"chain": wanted.chain}
        answer |= {"best": {"accuracy": wanted.score.accuracy}} if which == "best" else {}
        assert told(capsys, "export", f"plain@{which}", "--to", str(file)) == answer
        assert same(torch.load(file), wanted.tensors)
    out = said(capsys, "export", "plain@best", "--to", str(tmp_path / "told.pt"))
    accuracy = f"{plain.round(best).score.accuracy:.2%}"
    assert out.startswith(f"plain@best is round {best}, the best by accuracy ({accuracy}), and is now in ")


def test_the_best_round_without_classes_is_that_of_the_lowest_loss(train, own, tmp_path, capsys) -> None:
    data = own("import torch\ndef data(): return torch.eye(80, 3), torch.arange(80.0) % 7\n") + ":data"
    run = train(**FIELDS, data=data, model="linear", name="numbers")
    best = min((1, 2), key=lambda number: run.round(number).score.loss)
    answer = told(capsys, "export", "numbers@best", "--to", str(tmp_path / "best.pt"))
    assert answer["best"] == {"loss": run.round(best).score.loss}


def test_a_file_that_is_there_is_replaced_only_by_force(plain, tmp_path, capsys) -> None:
    file = tmp_path / "model.pt"
    said(capsys, "export", "plain@1", "--to", str(file))
    line = f"{file} exists already; give another name, or --force to replace it"
    assert refused(capsys, "export", "plain@2", "--to", str(file)) == (2, line)
    assert same(torch.load(file), plain.round(1).tensors)
    said(capsys, "export", "plain@2", "--to", str(file), "--force")
    assert same(torch.load(file), plain.round(2).tensors)


def test_a_safetensors_file_says_which_round_it_is(plain, tmp_path, capsys) -> None:
    file = tmp_path / "model.safetensors"
    said(capsys, "export", "plain@2", "--to", str(file))
    with safetensors.safe_open(file, "pt") as opened:
        facts = opened.metadata()
    wanted, data = plain.round(2), plain.attributes["data"]["digest"]
    assert json.loads(facts.pop("scores")) == wanted.score.row()
    assert facts == {"run": "plain", "round": "2", "chain": wanted.chain, "data_digest": data, "format": "pt"}


def test_a_whole_run_goes_to_a_tracker(plain, tmp_path, capsys) -> None:
    pytest.importorskip("tensorboard")
    out = said(capsys, "export", "plain", "--to", "tensorboard", "--out", str(tmp_path / "board"))
    assert out.startswith(f"plain is now in {tmp_path}/board/plain; look with `tensorboard --logdir")
    assert list((tmp_path / "board/plain").glob("events.out.tfevents.*"))


@pytest.mark.thorough
def test_what_a_tracker_refuses_is_one_clear_line(plain, tmp_path, capsys) -> None:
    pytest.importorskip("mlflow")
    code, line = refused(capsys, "export", "plain", "--to", "mlflow", "--out", "nonsense://nowhere")
    assert (code, line.startswith("mlflow takes nothing at nonsense://nowhere: ")) == (1, True), line


def test_a_report_is_written(plain, tmp_path, capsys) -> None:
    out = said(capsys, "report", "plain", "--out", str(tmp_path / "run.html"), "--replay", "1")
    assert out == f"plain is described in {tmp_path}/run.html\n"
    assert "round 3: bit-identical" in (tmp_path / "run.html").read_text()


BAD = {
    "plain --to model.pt": "plain is no round; name one, as plain@last",
    "plain@x --to model.pt": "plain@x is no round; name one, as plain@last",
    "plain@9 --to model.pt": "no committed round 9 in .*; it has rounds 0 to 3",
    "plian@2 --to model.pt": "no run 'plian' under .*; did you mean plain",
    "plain@2 --to model.zip": r"a checkpoint ends in .*, not in '\.zip'; a folder whose name has a dot ends in /",
    "plain@2 --to no/model.pt": "there is no folder no; make it first",
    "plain@2 --to file": "file is a file; give the folder another name",
    "plain@2 --to .": r"\. has files that no export wrote",
    "plain@2 --to=": "'' is no target of an export; give a folder",
    "plain@2 --to mlfow": "mlfow is no tracker; did you mean mlflow.* A folder of that name is mlfow/",
    "plain@2 --to mlflow": "mlflow takes a whole run, not plain@2; name the run alone",
    "plain@2 --to model.pt --out x": "--out says where a tracker",
    "plain@2 --to model.pt --onnx": "--onnx writes a file into a folder",
    "plain --to tensorboard --onnx": "--onnx writes a file into a folder",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_clear_line(plain, tmp_path, monkeypatch, capsys, arguments) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, line = refused(capsys, "export", *arguments.split())
    assert code in (1, 2)
    assert re.search(BAD[arguments], line), line
