"""A stored network scored on other data has the numbers that its run recorded on these, to the bit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import roundweave as rw
from roundweave.storage.errors import DataError
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command
from tests.flows.digits import DIGITS
from tests.rows import but_first

MINE = f"""{DIGITS}
def pair(): return rw.Dataset(some(range(1500)), some(range(1500, 1797)), digits().scaling)
def last(): return only(range(1500, 1797))
def each(partition, partitions):
    rows = range(partition, 1797, partitions)
    return rw.Dataset(some(rows[:-60]), some(rows[-60:]), digits().scaling)
def margin(outputs, targets): return outputs.softmax(1).gather(1, targets[:, None])[:, 0]

def whole(): return torch.zeros(4, 1, 8, 8, dtype=torch.int64), torch.arange(4)
def one(): return torch.zeros(1, 1, 8, 8), torch.tensor([3])
"""

OTHER = {
    "own": {"model": "{}:net", "loss": "{}:smoothed", "scores": "{}:margin,accuracy"},
    "transforms": {"transform": "{}:halved", "held_out_transform": "{}:halved", "precision": "bf16"},
    "server": {"algorithm": "downpour", "rounds": 2, "evaluate_every": 2},
    "partitioned": {"data": "{}:each"},
    "bfloat16": {"dtype": "bfloat16"},
    "ranks": {"ranks": 2},
    "topology": {"algorithm": "d_psgd", "topology": "ring"},
    "cohort": {"cohort": 2, "keep": "last:1", "rounds": 2},
}
FIRST = ("own", "server", "partitioned")  # each asks for its numbers in another way


@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
@pytest.mark.parametrize("kind", but_first(FIRST, OTHER))
def test_the_same_examples_give_the_recorded_score_to_the_bit(kind: str, train, own) -> None:
    mine = own(MINE)
    fields = {"data": "{}:pair", "partitions": 3, "rounds": 1, "name": kind} | OTHER[kind]
    fields = {key: value.format(mine) if isinstance(value, str) else value for key, value in fields.items()}
    run = train(**fields)
    for number in run.committed:
        held_out, given = run.score(number), run.score(number, data=fields["data"])
        assert held_out.score == given.score
        assert run.round(number).score in (None, given.score)
        assert held_out.data_digest == given.data_digest == run.attributes["data"]["digest"]


def test_all_examples_are_scored_in_any_form_and_with_other_scores(train, own) -> None:
    mine = own(MINE)
    run = train(data=f"{mine}:pair", partitions=3, rounds=1, name="first")
    recorded = run.round(1).score
    assert run.score(data=f"{mine}:last").score == recorded
    assert run.score("best", data="digits").score.examples == 1797
    margin = run.score(data=f"{mine}:last", scores=(f"{mine}:margin", "top5")).score
    assert margin.loss == recorded.loss
    assert [*margin.values] == ["margin", "top5"]
    assert run.score(data=f"{mine}:one").score.examples == 1
    assert run.score(data=f"{mine}:last", held_out_transform=f"{mine}:halved").score != recorded
    every = run.score(data=(f"{mine}:last", f"{mine}:last")).score
    assert (every.loss, every.examples) == (pytest.approx(recorded.loss), 2 * recorded.examples)


WRONG = [
    ({"data": "{}:empty"}, "at least one"),
    ({"data": "{}:small"}, "has inputs (1, 7, 7) and targets (), run first has (1, 8, 8)"),
    ({"data": "{}:whole"}, "inputs that are integers, run first has numbers"),
    ({"data": "{}:more"}, "gives 10 outputs, but labels go up to 11"),
    ({"data": "{}:quantities"}, "targets that are quantities, run first has labels"),
    ({}, "first holds out no examples; give --data"),
    ({"data": "digits", "scores": "mae"}, "score mae needs outputs"),
]


def test_what_does_not_fit_is_one_line(train, own, capsys) -> None:
    mine = own(MINE)
    run = train(partitions=2, rounds=1, held_out=0, name="first")
    for given, line in WRONG:
        data = given.get("data")
        with pytest.raises(rw.RoundweaveError, match=re.escape(line)):
            run.score(**given | {"data": data and data.format(mine)})
    assert refused(capsys, "score", "first") == (2, "first is no round; name one, as first@last")


def test_the_command_prints_a_table_or_json(train, capsys) -> None:
    run = train(partitions=2, rounds=1, name="first")
    code, out, _ = command(capsys, "score", "first@best", "--data", "digits", "--json")
    told, score = json.loads(out), run.score(data="digits").score
    assert (code, told["run"], told["round"], told["data"]) == (0, "first", 1, "digits")
    assert (told["loss"], told["scores"], told["examples"]) == (score.loss, dict(score.values), 1797)
    _, out, _ = command(capsys, "score", "first@1")
    assert [line.split()[0] for line in out.splitlines()] == ["round", "1", "first"]
    assert out.splitlines()[2].startswith("first on held out, digest e6d5806e5ae068d9")


def table(place: Path, labels: str) -> str:
    rows = [f"{number},{number % 3},{labels[number % len(labels)]}" for number in range(60)]
    place.write_text("\n".join(["a,place,label", *rows]))
    return f"csv:{place}"


def test_labels_and_characters_are_numbered_as_the_run_has_them(train, tmp_path: Path) -> None:
    data = table(tmp_path / "all.csv", "xyz")
    run = train(data=data, target="label", split="by:place", partitions=3, rounds=1, held_out=0, name="table")
    network, inputs = run.network(), torch.arange(60.0)[:, None]
    for labels in ("xyz", "zy", "z"):
        numbers = torch.tensor(["xyz".index(labels[number % len(labels)]) for number in range(60)])
        score = run.score(data=table(tmp_path / f"{labels}.csv", labels)).score
        assert score.accuracy == (network(inputs).argmax(1) == numbers).double().mean().item()
        assert score.loss == pytest.approx(functional.cross_entropy(network(inputs), numbers).item())
    with pytest.raises(DataError, match="label 'w' is unknown; known are x, y, z"):
        run.score(data=table(tmp_path / "new.csv", "xw"))
    with pytest.raises(DataError, match="labels that are numbers, run table has names"):
        run.score(data=table(tmp_path / "numbers.csv", "012"))
    (tmp_path / "a.txt").write_text("abcdefgh" * 40)
    (tmp_path / "b.txt").write_text("hgfe" * 40)
    options = {"width": 16, "heads": 2}
    text = train(data=f"text:{tmp_path}/a.txt:16", model="gpt", model_options=options, rounds=1, name="text")
    assert text.score(data=f"text:{tmp_path}/b.txt:16").score.examples == 9
