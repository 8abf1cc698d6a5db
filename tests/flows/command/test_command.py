"""The command: good input and bad, exit codes, and what a person reads."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from roundweave.flows.serving.api_server import template
from roundweave.flows.stored import open_run
from tests.flows.command.in_process import WITHOUT_PREFECT, refused, run, said, told
from tests.flows.prefect_server import command_line

OWN = """
import torch
from torch import nn
def data():
    return torch.arange(200.0).reshape(50, 4) / 200, torch.arange(50) % 2
def wide():
    return nn.Linear(7, 2)
class views(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, inputs):
        return self.second(self.first(inputs).view(-1, 8))
"""
SHARED = ["--executor", "inline", "--ranks", "2"]
DEEP = '{"a":' * 100_000 + "0" + "}" * 100_000


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        # Options, and what one of them cannot be
        (["--bogus"], 2, "No such option: --bogus"),
        (["--lr", "fast"], 2, "--lr"),
        (["nofile.toml"], 2, "cannot read nofile.toml"),
        (["{deep}"], 2, "nested deeper than 64 levels"),
        (["--partitions", "0"], 2, "partitions = 0: Input should be greater than or equal to 1"),
        (["--model-options", "hidden"], 2, "'--model-options': must be a JSON object"),
        (["--model-options", DEEP], 2, "nested deeper than 64 levels"),
        (["--model-options", '{"hiden": 3}'], 1, "model mlp with options {'hiden': 3}"),
        (["--name", "a/b"], 2, "name = 'a/b'"),
        (["--root", "{table}"], 1, "table.csv: Not a directory; name a folder"),
        (["--root", "ftp://bucket/runs"], 2, "there are no places of scheme ftp://"),
        (["--scheduler", "nowhere.json"], 1, "no scheduler file nowhere.json"),
        # What is not there
        (["--model", "resnet"], 2, "unknown model 'resnet'; there are linear, logistic, mlp, cnn"),
        (["--data", "csv:{table}", "--target", "c"], 2, "has no column 'c'; it has a, b"),
        (["--model", "none.py:model"], 2, "cannot read none.py"),
        (["--model", "{mine}:nothing"], 2, "the file has no such function"),
        (["--algorithm", "async_sgd", "--executor", "inline", "--order", "recorded:nowhere"], 1, "nowhere"),
        # What does not fit
        (["--partitions", "5000"], 1, "5000 partitions need at least as many examples, and there are 1618"),
        (["--data", "{mine}:data", "--model", "{mine}:wide"], 1, "fails with RuntimeError: "),
        # What ranks cannot share
        ([*SHARED, "--units", "fc1, fc3"], 2, "units 'fc3' cannot be shared by ranks; those of fc1 can"),
        ([*SHARED, "--hybrid"], 1, "nothing is trained before fc1, the first of the shared layers; leave hybrid"),
        ([*SHARED, "--data", "{mine}:data", "--model", "{mine}:views"], 1, "shares of units first give another"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, own, tmp_path, arguments, code, says) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,0\n2,1\n")
    (tmp_path / "deep.toml").write_text("partitions = " + "[" * 100 + "]" * 100)
    places = {"mine": own(OWN), "table": f"{tmp_path}/table.csv", "deep": f"{tmp_path}/deep.toml"}
    arguments = [word if word.startswith('{"') else word.format(**places) for word in arguments]
    found, line = refused(capsys, "train", *arguments)
    assert (found, says in line) == (code, True), line
    assert not list((tmp_path / "runs").glob("*.zarr"))


def test_a_complete_run_cannot_be_resumed_with_fewer_rounds(stored, capsys) -> None:
    stored("four")
    fewer = refused(capsys, "resume", "four", "--rounds", "2", "--executor", "inline")
    assert fewer == (2, "four has 4 rounds already; give --rounds a larger number")
    assert said(capsys, "resume", "four", "--executor", "inline").startswith("four: complete, 4 rounds")
    again = ["--model", "logistic", "--partitions", "2", "--local-steps", "1", "--name", "four"]
    out = said(capsys, "train", *again, "--executor", "inline", "--rounds", "2")
    assert out.startswith("four: complete, 4 rounds")


def test_looking_at_what_is_no_run_is_one_clear_line(capsys, tmp_path) -> None:
    (tmp_path / "runs" / "fake.zarr").mkdir(parents=True)
    assert "is not a run of Roundweave" in refused(capsys, "show", "fake")[1]
    code, line = refused(capsys, "resume", "fak")
    assert (code, "no run 'fak'" in line, "did you mean fake?" in line) == (1, True, True)


def test_lost_rounds_are_named_and_the_run_goes_on(capsys, stored) -> None:
    records = stored("four").path / "commits"
    for round, left in ((2, "{"), (4, "")):
        (records / f"{round}.json").write_text(left)
    out = said(capsys, "show", "four")
    assert "3/4 rounds" in out
    assert "lost: round 2, whose record is damaged; later rounds are intact" in out
    assert "damaged: round 4; `roundweave resume four` computes it again" in out
    out = said(capsys, "resume", "four", "--rounds", "5", "--executor", "inline")
    assert "four: complete, 5 rounds" in out
    assert "lost: round 2," in out
    assert "found damaged and computed again: round 4" in out
    assert "refused" not in out


def test_a_damaged_run_is_one_clear_line_and_listed(capsys, stored) -> None:
    path = stored("four").path / "zarr.json"
    stored("plain")
    path.write_text(path.read_text().replace('"local_steps": 1', '"local_steps": 3'))
    for command in (["show", "four"], ["resume", "four", "--rounds", "5"]):
        code, line = refused(capsys, *command)
        assert code == 1
        assert "attributes in zarr.json; one or the other was changed" in line
    out = said(capsys, "runs")
    assert "four is damaged: " in out
    assert "3/3" in out
    assert [found["status"] for found in told(capsys, "runs")] == ["complete", "damaged"]


def test_what_init_writes_trains_from_where_the_user_stands_and_goes_on(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "init", "my project")
    assert run(capsys, "init", "my project")[0] == 2
    line = shlex.split(out.splitlines()[-1].removeprefix("next: roundweave "))
    assert line == ["train", "my project/train.toml"]
    result = told(capsys, *line, "--rounds", "2", "--executor", "inline", "--name", "mine")
    wanted = {"run": "mine", "status": "complete", "rounds": 2, "refused": 0, "digest": open_run("mine").digest}
    assert {key: result[key] for key in wanted} == wanted
    assert result["accuracy"] > 0.5
    assert 0 < result["first_round_seconds"] < result["seconds"]
    assert result["seconds_per_round"] > 0
    assert open_run("mine").config["model"]["path"] == str(tmp_path / "my project/mine.py")
    (tmp_path / "my project/mine.py").write_text("the file may change or go: its source is kept")
    assert "mine: complete, 3 rounds" in said(capsys, "resume", "mine", "--rounds", "3", "--executor", "inline")
    assert "3/3 rounds" in said(capsys, "show", "mine")
    assert [found["run"] for found in told(capsys, "runs")] == ["mine"]


@pytest.mark.thorough
def test_a_training_in_a_process_of_its_own_leaves_nothing_of_prefect_at_home(tmp_path) -> None:
    cache = {"XDG_CACHE_HOME": str(template().parents[1])}  # with an empty database, which takes 4 s to make
    environment = WITHOUT_PREFECT | cache | {"HOME": str(tmp_path)}
    line = command_line("train", "--rounds", "3", "--executor", "inline", "--name", "mine", "--json")
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "complete"
    assert "round 3/3" in done.stderr
    assert not (tmp_path / ".prefect").exists()


# What there is by name, and the options of algorithms.


def test_every_table_is_listed(capsys) -> None:
    tables = told(capsys, "list")
    named = {row["name"]: row for row in tables["algorithms"]}
    assert "mu=0.1" in named["fed_prox"]["options"]
    averages = {row["name"]: row["options"] for row in tables["averages"]}
    assert averages["ties"] == "base, coefficients, layers, scaling=1.0, normalize=True, elect=sum, density=0.2"
    assert (averages["slerp"], averages["fisher"], averages["best"]) == ("t=0.5", "coefficients", "")
    hung = {row["name"]: row["options"] for row in tables["plugins"]}
    assert (hung["EarlyStopping"], hung["Export"]) == ("target_accuracy, patience", "export")
    assert all(row["what it is"] for rows in tables.values() for row in rows)
    out = said(capsys, "list", "splits")
    assert ("dirichlet:ALPHA" in out, "krum" in out) == (True, False)
    assert run(capsys, "list", "splitz")[2].startswith("error: unknown table 'splitz'; did you mean splits?")


def test_help_shows_the_options_of_the_algorithm_that_is_asked_for(capsys, own, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    path = own("def algorithm(sharpness: float = 2.0): ...")
    plain, prox, mine = (
        said(capsys, "train", *arguments, "--help")
        for arguments in ([], ["--algorithm", "fed_prox"], [f"--algorithm={path}:algorithm"])
    )
    shown = ("--partitions", "--outer-lr", "--mu", "--sharpness")
    assert [[option in text for option in shown] for text in (plain, prox, mine)] == [
        [True, False, False, False],
        [True, True, True, False],
        [True, False, False, True],
    ]
    assert all(f"--{part} " in text for text in (plain, prox, mine) for part in ("map", "reduce", "apply"))


OWN_OPTIONS = """
import roundweave as rw
def algorithm(sharpness: float = 2.0):
    print("sharpness", sharpness)
    return rw.Algorithm(rw.LocalSteps(local_steps=1), rw.Mean(), rw.Sgd(1.0))
def clashing(sharpness: float = 2.0, seed: int = 3):
    return algorithm(sharpness)
"""


def test_options_of_an_algorithm_of_ones_own_are_known_by_its_file_and_its_run(capsys, own, tmp_path) -> None:
    path = own(OWN_OPTIONS)
    (tmp_path / "a.toml").write_text(f'rounds = 1\nexecutor = "inline"\n[algorithm]\nname = "{path}:algorithm"\n')
    for number, arguments in enumerate(([str(tmp_path / "a.toml")], ["--from", "own0@1", "--executor", "inline"])):
        code, out, err = run(capsys, "train", *arguments, "--sharpness", "5", "--name", f"own{number}")
        assert (code, "sharpness 5.0" in out) == (0, True), err
    code, _, err = run(capsys, "train", "--from", "own0@1", "--dullness", "5")
    assert (code, "No such option: --dullness" in err) == (2, True)


def test_a_parameter_of_ones_own_that_the_command_takes_is_refused(capsys, own) -> None:
    path = own(OWN_OPTIONS)
    says = f"{path}:clashing takes seed, as the command does; give it another name"
    assert refused(capsys, "train", "--algorithm", f"{path}:clashing", "--seed", "5") == (2, says)


def test_a_schedule_without_rounds_goes_over_those_of_the_run(capsys) -> None:
    arguments = ["--executor", "inline", "--rounds", "3", "--name", "cosine", "--lr-schedule", "cosine"]
    said(capsys, "train", *arguments)
    assert open_run("cosine").config["algorithm"]["lr_schedule"] == "cosine:3"
    said(capsys, "resume", "cosine", "--rounds", "4", "--executor", "inline")
    assert open_run("cosine").done == 4


def test_a_split_is_shown_and_drawn(capsys, tmp_path) -> None:
    plot = tmp_path / "split.png"
    arguments = ["--split", "shards:2", "--partitions", "5", "--held-out", "0"]
    out = said(capsys, "split", *arguments, "--plot", str(plot))
    assert "1797 examples to train on, shards:2, in 5 partitions" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = told(capsys, "split", *arguments)["partitions"]
    assert sum(row["size"] for row in rows) == 1797
    assert all(sum(count > 0 for label, count in row.items() if label != "size") <= 4 for row in rows)
    for words, says in (
        (["--split", "by:role"], "has no column 'role'"),
        (["--plot", "a.txt"], "a plot ends in .png"),
        (["--sites", "berlin,paris", "--data", "npz:examples.npz"], "the examples of sites are read there alone"),
    ):
        assert says in refused(capsys, "split", *words)[1]
