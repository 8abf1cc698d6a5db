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

MINE = """
import torch
from torch import nn
def data():
    return torch.arange(200.0).reshape(50, 4) / 200, torch.arange(50) % 2
def negative():
    return torch.zeros(50, 4), torch.arange(50) - 1
def model():
    return nn.Linear(4, 2)
def wide():
    return nn.Linear(7, 2)
class views(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, inputs):
        return self.second(self.first(inputs).view(-1, 8))
"""


SERVER = ["--algorithm", "async_sgd", "--executor", "inline"]
SHARED = ["--executor", "inline", "--ranks", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        # Options, and what one of them cannot be
        (["--bogus"], 2, "No such option: --bogus"),
        (["--lr", "fast"], 2, "--lr"),
        (["nofile.toml"], 2, "cannot read nofile.toml"),
        (["--partitions", "0"], 2, "partitions = 0: Input should be greater than or equal to 1"),
        (["--worker-timeout", "1"], 2, "worker_timeout = 1.0: Input should be greater than or equal to 10"),
        (["--threads", "100000"], 2, "threads = 100000: Input should be less than or equal to 1024"),
        (["--rounds", "1000000000"], 2, "rounds = 1000000000: Input should be less than or equal to 1000000"),
        (["--model-options", "hidden"], 2, "'--model-options': must be a JSON object"),
        (["--model-options", '{"hiden": 3}'], 1, "model mlp with options {'hiden': 3}"),
        (["--name", "a/b"], 2, "name = 'a/b'"),
        (["--name", "n" * 251], 2, "String should have at most 250 characters"),
        (["--root", "{table}"], 1, "table.csv: Not a directory; name a folder"),
        (["--scheduler", "nowhere.json"], 1, "no scheduler file nowhere.json"),
        # What is not there
        (["--model", "resnet"], 2, "unknown model 'resnet'; there are linear, logistic, mlp, cnn"),
        (["--data", "mnist:nowhere"], 2, "no train-images-idx3-ubyte.gz or train-images-idx3-ubyte in"),
        (["--data", "csv:nowhere.csv"], 2, "nowhere.csv; give the path of one to read as csv"),
        (["--data", "csv:{table}", "--target", "c"], 2, "has no column 'c'; it has a, b"),
        (["--split", "odd"], 2, "unknown split 'odd'; there are iid, contiguous, dirichlet:ALPHA"),
        (["--split", "by:role"], 2, "has no column 'role'"),
        (["--model", "none.py:model"], 2, "cannot read none.py"),
        (["--model", "{mine}:nothing"], 2, "the file has no such function"),
        ([*SERVER, "--order", "recorded:nowhere"], 1, "nowhere"),
        # What does not fit
        (["--partitions", "5000"], 1, "5000 partitions need at least as many examples, and there are 1618"),
        (["--quorum", "9"], 2, "quorum 9 is more than the 4 partitions"),
        (["--sites", "berlin,paris", "--ranks", "2"], 2, "read all examples, and those of sites stay there"),
        (["--sites", "berlin,berlin"], 2, "names a site twice; give how many partitions it has, as berlin:2"),
        (["--sites", "berlin,paris:3", "--partitions", "5"], 2, "the sites have 4 partitions, not 5"),
        (["--data", "{mine}:data", "--model", "{mine}:wide"], 1, "fails with RuntimeError: "),
        (["--data", "{mine}:negative"], 1, "label -1 of example 0 is out of range"),
        # What ranks cannot share
        (["--executor", "inline", "--ranks", "0"], 2, "ranks"),
        ([*SHARED, "--algorithm", "fed_prox"], 2, "by its own gradient alone, not for map FedProx()"),
        ([*SHARED, "--units", "fc1, fc3"], 2, "units 'fc3' cannot be shared by ranks; those of fc1 can"),
        (
            [*SHARED, "--hybrid"],
            1,
            "nothing is trained before fc1, the first of the shared layers; leave hybrid out",
        ),
        ([*SHARED, "--data", "{mine}:data", "--model", "{mine}:views"], 1, "shares of units first give another"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, own, tmp_path, arguments, code, says) -> None:
    mine = own(MINE)
    (tmp_path / "table.csv").write_text("a,b\n1,0\n2,1\n")
    places = {"mine": mine, "table": str(tmp_path / "table.csv")}
    arguments = [word if word.startswith('{"') else word.format(**places) for word in arguments]
    found, line = refused(capsys, "train", *arguments)
    assert found == code
    assert says in line
    assert not list((tmp_path / "runs").glob("*.zarr"))


def test_the_longest_name_can_be_used(capsys) -> None:
    name = "n" * 250
    assert (
        run(capsys, "train", "--name", name, "--rounds", "1", "--executor", "inline", "--model", "linear")[0] == 0
    )
    assert open_run(name).done == 1


def test_a_complete_run_cannot_be_resumed_with_fewer_rounds(stored, capsys) -> None:
    stored("four")
    fewer = refused(capsys, "resume", "four", "--rounds", "2", "--executor", "inline")
    assert fewer == (2, "four has 4 rounds already; give --rounds a larger number")
    assert said(capsys, "resume", "four", "--executor", "inline").startswith("four: complete, 4 rounds")
    again = ["--model", "logistic", "--partitions", "2", "--local-steps", "1", "--name", "four"]
    out = said(capsys, "train", *again, "--executor", "inline", "--rounds", "2")
    assert out.startswith("four: complete, 4 rounds")


def test_units_are_named_with_commas_between_them(capsys) -> None:
    options = ["--units", "fc1", "--rounds", "1", "--local-steps", "2", "--name", "named"]
    said(capsys, "train", *SHARED, *options)
    assert open_run("named").config["units"] == ["fc1"]


def test_an_unknown_field_of_a_file_names_the_nearest(capsys, tmp_path) -> None:
    (tmp_path / "a.toml").write_text("partitons = 3")
    said = "unknown field 'partitons'; did you mean partitions?"
    assert refused(capsys, "train", str(tmp_path / "a.toml")) == (2, said)


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
    assert "lost: round 2, of which no whole record is there; the later ones are whole" in out
    assert "damaged: round 4; `roundweave resume four` does it again" in out
    out = said(capsys, "resume", "four", "--rounds", "5", "--executor", "inline")
    assert "four: complete, 5 rounds" in out
    assert "lost: round 2," in out
    assert "found damaged and done again: round 4" in out
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


@pytest.mark.dear("a user's whole way, in processes of its own")
def test_a_run_from_init_to_show(capsys, tmp_path, monkeypatch) -> None:
    """The whole way of a new user, in processes of its own, and nothing of Prefect in the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    cache = {"XDG_CACHE_HOME": str(template().parents[1])}  # with an empty database, which takes 4 s to make
    environment = WITHOUT_PREFECT | cache | {"HOME": str(home), "ROUNDWEAVE_ROOT": str(tmp_path / "runs")}
    work = tmp_path / "work"

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(*arguments), cwd=work, env=environment, capture_output=True, text=True, check=True
        )

    monkeypatch.chdir(tmp_path)
    said(capsys, "init", "work")
    assert run(capsys, "init", "work")[0] == 2
    done = command("train", "train.toml", "--rounds", "3", "--executor", "inline", "--name", "mine", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    wanted = {"run": "mine", "status": "complete", "rounds": 3, "refused": 0}
    assert {key: result[key] for key in wanted} == wanted
    assert result["digest"] == open_run("mine").digest
    assert result["accuracy"] > 0.5
    assert 0 < result["first_round_seconds"] < result["seconds"]
    assert result["seconds_per_round"] > 0
    assert "round 3/3" in done.stderr

    (work / "mine.py").write_text("the file may change or go: its source is kept")
    assert "mine: complete, 4 rounds" in said(capsys, "resume", "mine", "--rounds", "4", "--executor", "inline")
    assert open_run("mine").done == 4

    out = said(capsys, "show", "mine")
    assert "4/4 rounds" in out
    assert [found["run"] for found in told(capsys, "runs")] == ["mine"]
    assert not (home / ".prefect").exists()


def test_init_says_what_trains_from_where_the_user_stands(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "init", "my project")
    line = shlex.split(out.splitlines()[-1].removeprefix("now: roundweave "))
    assert line == ["train", "my project/train.toml"]
    said(capsys, *line, "--rounds", "1", "--executor", "inline", "--name", "told")
    assert open_run("told").config["model"]["path"] == str(tmp_path / "my project/mine.py")


def test_code_of_a_foreign_store_needs_trust(capsys, own, train, tmp_path) -> None:
    mine = own(MINE)
    foreign = train(data=f"{mine}:data", model=f"{mine}:model", rounds=1, name="foreign", root=tmp_path / "theirs")
    code, line = refused(capsys, "resume", str(foreign.path))
    assert (code, f"{mine}:data" in line, "--trust" in line) == (2, True, True)


# What there is by name, and the options of algorithms.


def test_every_table_is_listed(capsys) -> None:
    tables = told(capsys, "list")
    assert set(tables) == {
        *("algorithms", "data", "splits", "models", "losses", "scores"),
        *("maps", "reduces", "applies", "schedules", "topologies", "compressors", "averages"),
    }
    named = {row["name"]: row for row in tables["algorithms"]}
    assert "mu=0.1" in named["fed_prox"]["options"]
    assert "Li et al. 2020" in named["fed_prox"]["what it is"]
    averages = {row["name"]: row["options"] for row in tables["averages"]}
    assert averages["ties"] == "base, coefficients, layers, scaling=1.0, normalize=True, elect=sum, density=0.2"
    assert (averages["slerp"], averages["fisher"], averages["best"]) == ("t=0.5", "coefficients", "")
    assert all(row["what it is"] for rows in tables.values() for row in rows)
    out = said(capsys, "list", "splits")
    assert "dirichlet:ALPHA" in out
    assert "krum" not in out
    assert run(capsys, "list", "splitz")[2].startswith("error: unknown table 'splitz'; did you mean splits?")


def test_help_says_that_a_local_optimizer_restarts_or_is_carried(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = "each round the local optimizer restarts, or goes on with what the partition carries: fresh"
    for algorithm in ("fed_avg", "diloco"):
        assert words in " ".join(said(capsys, "train", "--algorithm", algorithm, "--help").split())


def test_help_shows_the_options_of_the_algorithm_that_is_asked_for(capsys, own, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    path = own("def algorithm(sharpness: float = 2.0): ...")
    plain, prox, mine = (
        said(capsys, "train", *arguments, "--help")
        for arguments in ([], ["--algorithm", "fed_prox"], [f"--algorithm={path}:algorithm"])
    )
    assert all(max(map(len, text.splitlines())) <= 100 for text in (plain, prox))
    assert "--partitions" in plain
    assert "--outer-lr" not in plain
    assert "--mu" in prox
    assert "--outer-lr" in prox
    assert "--sharpness" in mine
    assert "--outer-lr" not in mine
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


def test_options_come_from_a_table_flat_keys_and_flags(capsys, tmp_path) -> None:
    (tmp_path / "a.toml").write_text(
        'rounds = 1\nexecutor = "inline"\nmomentum = 0.5\n[algorithm]\nname = "fed_prox"\nmu = 0.3\nlr = 0.05\n'
    )
    said(capsys, "train", str(tmp_path / "a.toml"), "--lr", "0.2", "--name", "a")
    options = open_run("a").config["algorithm"]
    taken = {name: options[name] for name in ("name", "mu", "lr", "momentum")}
    assert taken == {"name": "fed_prox", "mu": 0.3, "lr": 0.2, "momentum": 0.5}
    code, _, err = run(capsys, "train", str(tmp_path / "a.toml"), "--algorithm", "sync_sgd")
    assert code == 2
    assert "algorithm sync_sgd takes no mu" in err


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
    assert "unknown split" in run(capsys, "split", "--split", "shard:2")[2]
    assert "has no column 'role'" in run(capsys, "split", "--split", "by:role")[2]
    assert "a plot ends in .png" in run(capsys, "split", "--plot", "a.txt")[2]
    there = ("--sites", "berlin,paris", "--data", "npz:examples.npz")
    assert "the examples of sites are read there alone" in run(capsys, "split", *there)[2]


def test_a_root_of_a_kind_that_is_not_known_is_refused(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, line = refused(capsys, "train", "--root", "ftp://bucket/runs", "--rounds", "1")
    assert (code, "ftp" in line) == (2, True)
    assert not list(tmp_path.glob("ftp*"))


@pytest.mark.parametrize("depth", [100, 100_000])
def test_what_is_nested_too_deep_is_one_line(capsys, tmp_path, depth) -> None:
    (tmp_path / "a.toml").write_text("partitions = " + "[" * depth + "]" * depth)
    deep = '{"a":' * depth + "0" + "}" * depth
    for arguments in ([str(tmp_path / "a.toml")], ["--model-options", deep]):
        code, line = refused(capsys, "train", *arguments)
        assert (code, "nested deeper than 64 levels" in line) == (2, True)
