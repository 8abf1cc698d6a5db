"""`roundweave export` and `roundweave report`, with good input and bad."""

from __future__ import annotations

import json
import re

import pytest
import safetensors.torch
import torch

import roundweave as rw
from tests.flows.command.in_process import refused, run

OWN = """
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64, bias=False)
        self.second = torch.nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(64)
        self.last = torch.nn.Linear(64, 10)
        self.last.bias.requires_grad_(False)

    def forward(self, inputs):
        return self.last(self.norm(self.second(self.first(inputs.flatten(1)).relu())))

def model():
    torch.manual_seed(0)
    return Own()
"""

FIELDS = {"rounds": 3, "local_steps": 2, "partitions": 2}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [("float32", "safetensors"), ("float64", "pt"), ("bfloat16", "safetensors"), ("float16", "pt")],
)
def test_a_round_goes_out_and_in_with_the_same_bits(train, own, tmp_path, capsys, dtype, suffix) -> None:
    """Buffers of BatchNorm, tied weights and frozen parameters among them; the new run begins where it was."""
    model = f"{own(OWN)}:model"
    before = train(**FIELDS, model=model, dtype=dtype, name="first").round(2)
    file = tmp_path / f"model.{suffix}"
    assert run(capsys, "export", "first@2", "--to", str(file))[:2] == (0, f"first@2 is now in {file}\n")
    load = safetensors.torch.load_file if suffix == "safetensors" else torch.load
    assert same(load(file), before.tensors)
    after = train(**FIELDS, model=model, dtype=dtype, name="second", start_from=str(file))
    assert same(after.round(0).tensors, before.tensors)
    assert rw.open_run("second").replay("all").identical
    fields = FIELDS | {"rounds": 4, "model": model, "dtype": dtype, "start_from": str(file)}
    resumed, whole = (train(**fields, name=name) for name in ("second", "whole"))
    assert resumed.digest == whole.digest


def test_best_and_last_are_rounds(train, tmp_path, capsys) -> None:
    stored = train(**FIELDS, name="first")
    best = max((1, 2, 3), key=lambda number: stored.round(number).score.accuracy)
    for which, number in {"last": 3, "-1": 3, "best": best}.items():
        file, wanted = tmp_path / f"{which}.pt", stored.round(number)
        code, out, _ = run(capsys, "export", f"first@{which}", "--to", str(file), "--json")
        told = {"exported": f"first@{which}", "to": str(file), "run": "first", "round": number}
        told |= {"chain": wanted.chain}
        told |= {"best": {"accuracy": wanted.score.accuracy}} if which == "best" else {}
        assert (code, json.loads(out)) == (0, told)
        assert same(torch.load(file), wanted.tensors)
    _, out, _ = run(capsys, "export", "first@best", "--to", str(tmp_path / "told.pt"))
    accuracy = f"{stored.round(best).score.accuracy:.2%}"
    assert out.startswith(f"first@best is round {best}, the best by accuracy ({accuracy}), and is now in ")
    _, out, _ = run(capsys, "export", "first@last", "--to", str(tmp_path / "last2.pt"))
    assert out.startswith("first@last is round 3, and is now in ")


def test_the_best_round_without_classes_is_that_of_the_lowest_loss(train, own, tmp_path, capsys) -> None:
    data = own("import torch\ndef data(): return torch.eye(80, 3), torch.arange(80.0) % 7\n") + ":data"
    stored = train(**FIELDS, data=data, model="linear", name="numbers")
    best = min((1, 2, 3), key=lambda number: stored.round(number).score.loss)
    code, out, _ = run(capsys, "export", "numbers@best", "--to", str(tmp_path / "best.pt"), "--json")
    assert (code, json.loads(out)["best"]) == (0, {"loss": stored.round(best).score.loss})


def test_a_file_that_is_there_is_replaced_only_by_force(train, tmp_path, capsys) -> None:
    stored, file = train(**FIELDS, name="first"), tmp_path / "model.pt"
    assert run(capsys, "export", "first@1", "--to", str(file))[0] == 0
    said = f"{file} is there already; give another name, or --force to replace it"
    assert refused(capsys, "export", "first@2", "--to", str(file)) == (2, said)
    assert same(torch.load(file), stored.round(1).tensors)
    assert run(capsys, "export", "first@2", "--to", str(file), "--force")[0] == 0
    assert same(torch.load(file), stored.round(2).tensors)


def test_a_safetensors_file_says_which_round_it_is(train, tmp_path, capsys) -> None:
    stored, file = train(**FIELDS, name="first"), tmp_path / "model.safetensors"
    for number in (1, 2):
        assert run(capsys, "export", f"first@{number}", "--to", str(file), "--force")[0] == 0
        with safetensors.safe_open(file, "pt") as opened:
            told = opened.metadata()
        wanted = stored.round(number)
        assert json.loads(told.pop("scores")) == wanted.score.row()
        data = stored.attributes["data"]["digest"]
        facts = {"run": "first", "round": str(number), "chain": wanted.chain, "data_digest": data}
        assert told == facts | {"format": "pt"}


def test_a_whole_run_goes_to_a_tracker(train, tmp_path, capsys) -> None:
    pytest.importorskip("tensorboard")
    train(**FIELDS, name="first")
    code, out, _ = run(capsys, "export", "first", "--to", "tensorboard", "--out", str(tmp_path / "board"))
    assert code == 0
    assert out.startswith(f"first is now in {tmp_path}/board/first; look with `tensorboard --logdir")
    assert list((tmp_path / "board/first").glob("events.out.tfevents.*"))


def test_what_a_tracker_refuses_is_one_clear_line(train, tmp_path, capsys) -> None:
    pytest.importorskip("mlflow")
    train(**FIELDS, name="first")
    code, line = refused(capsys, "export", "first", "--to", "mlflow", "--out", "nonsense://nowhere")
    assert code == 1
    assert line.startswith("mlflow takes nothing at nonsense://nowhere: ")


def test_a_report_is_written(train, tmp_path, capsys) -> None:
    train(**FIELDS, name="first")
    code, out, _ = run(capsys, "report", "first", "--out", str(tmp_path / "run.html"), "--replay", "1")
    assert (code, out) == (0, f"first is described in {tmp_path}/run.html\n")
    assert "round 3: bit-identical" in (tmp_path / "run.html").read_text()


BAD = {
    ("export", "first", "--to", "model.pt"): "first is no round; name one, as first@last",
    ("export", "first@x", "--to", "model.pt"): "first@x is no round; name one, as first@last",
    ("export", "first@9", "--to", "model.pt"): "no committed round 9 in .*; it has rounds 0 to 3",
    ("export", "first@2", "--to", "model.zip"): r"a checkpoint ends in .*, not in '\.zip'",
    ("export", "first@2", "--to", "no/model.pt"): "there is no folder no; make it first",
    ("export", "first@2", "--to", "tensorbord"): "a checkpoint ends in|did you mean tensorboard",
    ("export", "first@2", "--to", "mlflow"): "mlflow takes a whole run, not first@2; name the run alone",
    ("export", "first@2", "--to", "model.pt", "--out", "x"): "--out says where a tracker",
    ("export", "frist@2", "--to", "model.pt"): "no run 'frist' under .*; did you mean first",
    ("report", "first", "--out", "run.txt"): "a report ends in .html",
    ("report", "none", "--out", "run.html"): "no run 'none' under",
}


def test_bad_input_is_one_clear_line(train, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    train(**FIELDS, name="first")
    for arguments, says in BAD.items():
        code, line = refused(capsys, *arguments)
        assert code in (1, 2)
        assert re.search(says, line), line
