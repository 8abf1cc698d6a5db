"""Gates and aliases: nights that are accepted or rejected, and the champion that they become."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import roundweave as rw
from roundweave.flows.config.scheduled import scheduled
from roundweave.flows.training.judging import give
from roundweave.storage.errors import CodeError, NotARun, UsageError
from roundweave.storage.rounds.judgements import key_of
from roundweave.storage.runs.aliases import alias_history, give_alias, holder_of
from tests.test_docs import HERE, blocks

SMALL = {"model": "logistic", "partitions": 2, "local_steps": 2, "executor": "inline", "rounds": 2}


def config(root: Path, **fields: Any) -> rw.TrainConfig:
    return rw.TrainConfig(**SMALL | {"root": root} | fields)


def trained(root: Path, **fields: Any) -> rw.Run:
    return rw.train(config(root, **fields), bar=False)


def command(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("roundweave")), *words, "--root", str(root)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_run_is_accepted_if_all_conditions_hold(tmp_path: Path, without_prefect) -> None:
    run = trained(tmp_path, name="a", accept="accuracy >= 0.05, loss < 10")
    loss, accuracy = run.history().iloc[-1][["loss", "accuracy"]]
    assert run.status == "complete"
    assert run.judgement is not None
    assert run.judgement.reasons == [f"accuracy >= 0.05: {accuracy:.6g}", f"loss < 10: {loss:.6g}"]
    rejected = trained(tmp_path, name="b", accept=["accuracy >= 0.05", "loss < 0.001"])
    assert rejected.status == "rejected"
    assert rejected.judgement is not None
    assert rejected.judgement.reasons[1] == f"loss < 0.001: {loss:.6g}, which is not enough"
    assert rejected.digest == run.digest
    assert rejected.replay("all").identical
    assert rw.open_run("b", tmp_path).verify().sound


@pytest.mark.parametrize(
    ("condition", "accepted"),
    [
        ("loss <= parent", False),
        ("loss > parent", True),
        ("accuracy >= parent", False),
        ("accuracy >= parent - 1", True),
        ("loss <= parent + 1e9", True),
        ("loss<=parent+.001", False),
    ],
)
def test_a_parent_is_compared_on_the_same_examples(
    tmp_path: Path, without_prefect, condition: str, accepted: bool
) -> None:
    trained(tmp_path, name="good", rounds=6)
    run = trained(tmp_path, name="bad", start_from="good@-1", lr=30.0, seed=3, accept=condition)
    first, last = run.round(0).score, run.round(-1).score
    assert first is not None
    assert last is not None
    assert last.loss > first.loss  # of the same rows, by the parent's network and by its own
    assert (run.status == "complete") is accepted


def test_where_there_is_no_parent_a_comparison_with_it_accepts(tmp_path: Path, without_prefect) -> None:
    run = trained(tmp_path, name="a", accept="loss <= parent - 100")
    assert run.status == "complete"
    assert "there is no parent" in f"{run.judgement}"


GATE = """
def bounded(run, parent):
    largest = max(weights.abs().max() for weights in run.round(-1).params.values())
    return bool(largest < {bound}) or "weights are too large"

def better(run, parent):
    return parent is not None and run.round(-1).score.loss < parent.score.loss

def wrong(run, parent):
    return 3

def fails(run, parent):
    return 1 / 0
"""


def test_a_function_of_ones_own_judges(tmp_path: Path, without_prefect) -> None:
    file = tmp_path / "gates.py"
    file.write_text(GATE.format(bound=1e-9))
    own = f"{file}:bounded"
    run = trained(tmp_path, name="a", accept=own)
    assert run.status == "rejected"
    assert f"{run.judgement}".count("weights are too large") == 1
    assert trained(tmp_path, name="b", start_from="a@1", accept=f"{file}:better, loss < 9").status == "complete"
    with pytest.raises(CodeError, match="must return True, False or why not, not int"):
        trained(tmp_path, name="c", accept=f"{file}:wrong")
    with pytest.raises(CodeError, match="fails failed with ZeroDivisionError"):
        trained(tmp_path, name="d", accept=f"{file}:fails")
    assert [rw.open_run(name, tmp_path).status for name in "cd"] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"accept": "accuracy => 0.9"}, "'accuracy => 0.9' is no condition; give one such as"),
        ({"accept": "acuracy >= 0.9"}, "accept: 'acuracy' is not scored; did you mean accuracy?"),
        (
            {"accept": "loss <= 1", "held_out": 0.0},
            "accept = loss <= 1 needs scores, and no examples are",
        ),
        ({"accept": "nowhere.py:gate"}, "nowhere.py"),
        ({"promote": "no/name"}, "promote = 'no/name': it takes an alias of the root"),
        ({"promote": "there"}, "there is a run of that name under"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_begins(
    tmp_path: Path, without_prefect, fields: dict[str, Any], said: str
) -> None:
    trained(tmp_path, name="there")
    with pytest.raises(rw.RoundweaveError, match=said.replace("?", r"\?")):
        trained(tmp_path, name="a", **fields)
    with pytest.raises(NotARun):
        rw.open_run("a", tmp_path)


def test_a_run_that_was_killed_before_it_was_judged_is_not_complete(tmp_path: Path, without_prefect) -> None:
    run = trained(tmp_path, name="night-1", accept="loss < 9", promote="champion")
    run.path.joinpath(key_of(2)).unlink()
    assert run.refresh().status == "interrupted"
    assert scheduled(config(tmp_path, name="night-2", start_from="night-*@-1"))[0].start_from is None
    again = trained(tmp_path, name="night-1", accept="loss < 9", promote="champion")
    assert again.status == "complete"
    assert [each.run for each in alias_history(tmp_path, "champion")] == ["night-1"]


def test_a_judgement_that_was_changed_is_none_and_verify_names_it(tmp_path: Path, without_prefect) -> None:
    run = trained(tmp_path, name="a", accept="loss < 0")
    file = run.path / key_of(2)
    file.write_text(file.read_text().replace("false", "true"))
    assert run.refresh().status == "interrupted"
    assert [f"{each}" for each in run.verify().findings] == [
        f"{key_of(2)}: it is not what was said of the round that is recorded"
    ]


def test_a_run_that_is_extended_is_judged_again(tmp_path: Path, without_prefect) -> None:
    fields = {"name": "a", "on_complete": "extend"}
    assert trained(tmp_path, **fields, accept="loss < 0").status == "rejected"
    longer = trained(tmp_path, **fields, accept="loss < 9")
    assert (longer.done, longer.status) == (4, "complete")
    assert longer.verify().sound


def test_nights_become_champions_only_if_they_are_accepted(tmp_path: Path, without_prefect, capfd) -> None:
    nightly = {"start_from": "champion@-1", "accept": "loss <= parent", "promote": "champion"}
    first = trained(tmp_path, name="night-1", **nightly)
    assert "nobody is champion under" in capfd.readouterr().err
    bad = trained(tmp_path, name="night-2", lr=30.0, seed=3, **nightly)
    third = trained(tmp_path, name="night-3", **nightly)
    assert [run.status for run in (first, bad, third)] == ["complete", "rejected", "complete"]
    assert [run.parent for run in (first, bad, third)] == [None, "night-1@2", "night-1@2"]
    assert [each.run for each in alias_history(tmp_path, "champion")] == ["night-1", "night-3"]
    assert rw.open_run("champion", tmp_path).name == "night-3"
    assert rw.fork("champion@best", tmp_path).start_from.reference.endswith("night-3.zarr@2")
    longer = trained(tmp_path, name="night-3", rounds=3, **nightly)  # it keeps what it began with
    assert (longer.done, longer.parent) == (3, "night-1@2")


def test_a_run_that_began_with_a_former_champion_does_not_follow_a_later_one(
    tmp_path: Path, without_prefect, capfd
) -> None:
    trained(tmp_path, name="a", promote="champion")
    trained(tmp_path, name="b", start_from="champion@-1", promote="champion")
    trained(tmp_path, name="c", start_from="a@-1", promote="champion")
    said = "c does not become champion: it began with a, and b followed since, with which nothing compares it"
    assert said in capfd.readouterr().err
    assert holder_of(tmp_path, "champion") == "b"
    trained(tmp_path, name="d", promote="champion")  # it began with no champion
    assert holder_of(tmp_path, "champion") == "d"


def test_one_that_is_better_than_both_on_validation_data_follows_the_later_champion(
    tmp_path: Path, without_prefect, capfd
) -> None:
    validated = {"validation": "digits", "accept": "validation_loss <= parent", "promote": "champion"}
    trained(tmp_path, name="a", **validated)
    trained(tmp_path, name="b", start_from="champion@-1", **validated, rounds=4)
    trained(tmp_path, name="worse", start_from="a@-1", **validated, rounds=3)
    losses = [rw.open_run(name, tmp_path).round(-1).score.values["validation_loss"] for name in ("worse", "b")]
    said = "worse does not become champion: it began with a, and b followed since, validation_loss <= parent: "
    assert f"{said}{losses[0]:.6g}, the parent's is {losses[1]:.6g}" in capfd.readouterr().err
    trained(tmp_path, name="better", start_from="a@-1", **validated, rounds=6)
    assert holder_of(tmp_path, "champion") == "better"


def test_the_page_s_function_of_a_gate(tmp_path: Path, without_prefect, capfd) -> None:
    [gate] = [block.text for block in blocks(HERE / "docs/scheduling.md") if block.text.startswith("# gates.py")]
    (file := tmp_path / "gates.py").write_text(gate)
    accept = f"{file}:near_the_parent"
    assert trained(tmp_path, name="a", rounds=4, accept=accept).status == "complete"
    assert trained(tmp_path, name="b", start_from="a@-1", accept=accept).status == "complete"
    worse = trained(tmp_path, name="c", start_from="a@-1", lr=30.0, seed=3, accept=accept)
    assert worse.judgement is not None
    assert "is worse than the parent's by more than 2 %" in worse.judgement.reasons[0]


def test_a_function_of_other_arguments_is_refused_before_it_trains(tmp_path: Path, without_prefect) -> None:
    (file := tmp_path / "gates.py").write_text("def gate(run): return True\n")
    with pytest.raises(UsageError, match=r"gates.py:gate must be a function of \(run, parent\): too many"):
        trained(tmp_path, name="a", accept=f"{file}:gate")
    with pytest.raises(NotARun):
        rw.open_run("a", tmp_path)


def test_names_of_aliases_and_runs_are_apart(tmp_path: Path, without_prefect) -> None:
    run = trained(tmp_path, name="a", promote="champion")
    with pytest.raises(UsageError, match="champion is an alias under"):
        trained(tmp_path, name="champion")
    with pytest.raises(UsageError, match="a is a run under"):
        give(tmp_path, "a", run, "by hand")
    give_alias(tmp_path, "champion", None, "by hand")
    with pytest.raises(NotARun):
        rw.open_run("champion", tmp_path)
    with pytest.raises(rw.RoundweaveError, match="chmpion"):
        trained(tmp_path, name="b", start_from="chmpion@-1", promote="champion")


def test_the_command_says_that_a_run_was_rejected_by_exit_code_3(tmp_path: Path) -> None:
    words = ["--executor", "inline", "--model", "logistic", "--partitions", "2", "--rounds", "2"]
    done = command(tmp_path, "train", *words, "--name", "a", "--accept", "loss <= 0", "--json")
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "rejected"
    assert "a is rejected: loss <= 0:" in done.stderr
    for words in (["show", "a"], ["runs"]):
        assert "rejected" in command(tmp_path, *words).stdout
    assert command(tmp_path, "resume", "a").returncode == 3


def test_the_command_shows_gives_and_takes_back(tmp_path: Path, without_prefect) -> None:
    assert command(tmp_path, "alias").stdout.startswith("no aliases")
    for name in ("a", "b"):
        trained(tmp_path, name=name)
    given = command(tmp_path, "alias", "champion", "a", "--why", "the only one", "--json")
    (holding,) = json.loads(given.stdout)
    assert (holding["run"], holding["round"], holding["why"]) == ("a", 2, "the only one")
    assert command(tmp_path, "alias", "champion", "b").returncode == 0
    assert command(tmp_path, "alias", "champion", "--take-back").returncode == 0
    history = json.loads(command(tmp_path, "alias", "champion", "--json").stdout)
    assert [each["run"] for each in history] == ["a", "b", None]
    assert "nobody" in command(tmp_path, "alias").stdout
    for line in ("other", "--take-back", "champion a --take-back", "champion nothing", "a b"):
        refused = command(tmp_path, "alias", *line.split())
        assert refused.returncode in (1, 2), line
        assert len(refused.stderr.splitlines()) <= 2, refused.stderr
