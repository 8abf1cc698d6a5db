"""Partitions with names, as hospitals of a table, go by these where a person reads of them, with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.config.experiment import Dealing
from roundweave.storage.errors import UsageError
from roundweave.tasks.data.partitions import forget_examples
from tests.flows.command.in_process import refused, said, told

OWN = """
import roundweave

def careful(input):
    if roundweave.partition().name == "rome":
        raise ValueError("no scanner")
    return input
"""

NAMES = ("berlin", "paris", "rome")


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


def table(folder: Path, names: tuple[str, ...] = NAMES) -> dict[str, object]:
    """The fields of a run on a table of eight rows of each of three hospitals."""
    rows = "".join(f"{n},{n % 2},{names[n % 3]}\n" for n in range(24))
    (folder / "hospitals.csv").write_text(f"age,ill,hospital\n{rows}")
    forget_examples()  # as in another process
    split = {"data": f"csv:{folder}/hospitals.csv", "target": "ill", "split": "by:hospital", "partitions": 3}
    return split | {"model": "logistic", "rounds": 2, "local_steps": 1}


def test_who_was_refused_is_named_on_every_surface(own, tmp_path: Path, capsys, monkeypatch) -> None:
    """But not in the card, which goes to others: the names are values of the data."""
    monkeypatch.setattr("roundweave.flows.plugins.exports.report._pictures", lambda run: {})  # they take seconds
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    fields = table(tmp_path) | {"transform": f"{own(OWN, 'own')}:careful", "log_file": log, "executor": "inline"}
    run = rw.train(rw.TrainConfig(name="hospitals", **fields), bar=False)
    shown = said(capsys, "show", "hospitals")
    assert "partitions berlin, paris, rome\n" in shown
    assert "round 2 refused partition rome: its map failed" in shown
    assert "not mapped again: partition rome in round 1 to 2" in said(capsys, "replay", "hospitals", "--all")
    assert str(run.replay(1).results[0]).startswith("round 1: bit-identical, partition rome not mapped again")
    assert first_words(str(run.round(1)))[1:] == ["partition", *NAMES]
    said(capsys, "report", "hospitals", "--out", str(page), "--replay", "0")
    assert "<td>1</td><td>rome</td>" in page.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    began, *rounds = (line for line in lines if line["event"] in ("began", "committed"))
    assert (began["partitions"], [[*line["refused"]] for line in rounds]) == ([*NAMES], [["2"], ["2"]])
    assert any(line.get("text", "").startswith("round 1 refused partition rome: ") for line in lines)
    said(capsys, "export", "hospitals@2", "--to", str(tmp_path / "folder"))
    assert "rome" not in (tmp_path / "folder/README.md").read_text()


def test_a_partition_is_left_out_and_looked_at_by_its_name(train, tmp_path: Path, capsys) -> None:
    run = train(**table(tmp_path), name="whole")
    assert run.recombine(2, without=["paris"], save="less").rounds == run.recombine(2, without=[1]).rounds
    less = rw.open_run("less")
    assert (less.attributes["parent"]["changed"], less.partition_names) == ({"without": ["paris"]}, NAMES)
    command = ("recombine", "whole", "--round", "2", "--executor", "inline", "--without")
    assert told(capsys, *command, "paris,0") == told(capsys, *command, "1,berlin")
    code, line = refused(capsys, *command, "pairs")
    assert (code, "has no partition pairs; did you mean paris?" in line) == (2, True)
    assert "without berlin, paris, rome it has 0" in refused(capsys, *command, "0,paris,2")[1]
    assert run.examples("paris").equals(run.examples(1))
    assert run.label_counts()["size"].to_dict() == {"berlin": 7, "paris": 7, "rome": 8}


def test_names_change_no_bits_and_those_that_are_the_numbers_are_none(train, tmp_path: Path, capsys) -> None:
    named = train(**table(tmp_path), name="named")
    plain = train(**table(tmp_path, ("0", "1", "2")), name="plain")
    assert (plain.digest, [*plain.partition_names]) == (named.digest, [0, 1, 2])
    assert "partitions" not in first_words(said(capsys, "show", "plain"))


def test_values_that_are_numbers_are_shown_with_the_number_of_the_partition(train, tmp_path) -> None:
    run = train(**table(tmp_path, ("1", "2", "3")), name="numbers")
    assert run.partition_names == ("0 (1)", "1 (2)", "2 (3)")
    assert run.recombine(2, without=["0 (1)"]).rounds == run.recombine(2, without=[0]).rounds
    with pytest.raises(UsageError, match=r"several partitions 1; give 0 \(1\) or 1 \(2\)"):
        run.recombine(2, without=["1"])


def test_a_split_is_shown_by_name(tmp_path: Path, capsys) -> None:
    given = {name: str(value) for name, value in table(tmp_path).items() if name in Dealing.model_fields}
    options = [text for name, value in given.items() for text in (f"--{name}", value)]
    assert first_words(said(capsys, "split", *options))[1:4] == [*NAMES]
    assert told(capsys, "split", *options)["names"] == [*NAMES]


def test_data_sets_of_partitions_go_by_their_files_unless_two_have_one_name(train, tmp_path: Path) -> None:
    called = []
    for files in (("berlin", "paris"), ("a/same", "b/same")):
        for file in files:
            place = tmp_path / f"{file}.csv"
            place.parent.mkdir(exist_ok=True)
            place.write_text("age,ill\n" + "".join(f"{n},{n % 2}\n" for n in range(10)))
        data = tuple(f"csv:{tmp_path}/{file}.csv" for file in files)
        run = train(data=data, model="logistic", partitions=2, rounds=1, local_steps=1, name=f"of-{files[0][0]}")
        called.append([*run.partition_names])
    assert called == [["berlin", "paris"], [0, 1]]
