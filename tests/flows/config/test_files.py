"""A configuration in a file: its paths go from the file, wherever the user stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundweave import TrainConfig, UsageError
from roundweave.flows.config.files import read_toml
from roundweave.flows.planning.plan import plan


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('data = "mine.py:data"', "proj/mine.py:data"),
        ('data = "csv:a, b.csv"', "csv:proj/a, b.csv"),
        ('data = "text:play.txt:32"', "text:proj/play.txt:32"),
        ('data = "mnist:/data/mnist"', "mnist:/data/mnist"),
        ('data = ["mine.py:one", "digits"]', ["proj/mine.py:one", "digits"]),
        ('transform = "mine.py:turned"', "proj/mine.py:turned"),
        ('held_out_transform = "mine.py:cut"', "proj/mine.py:cut"),
        ('start_from = "merged.safetensors"', "proj/merged.safetensors"),
        ('start_from = "night-*@-1"', "night-*@-1"),
        ('model = "../models.py:wide"', "proj/../models.py:wide"),
        ('model = "package.models:wide"', "package.models:wide"),
        ('loss = "mine.py:loss"', "proj/mine.py:loss"),
        ('scores = ["mine.py:score", "mae"]', ["proj/mine.py:score", "mae"]),
        ('algorithm = "trim.py:algorithm"', "proj/trim.py:algorithm"),
        ('algorithm = {name = "trim.py:algorithm", lr = 0.1}', {"name": "proj/trim.py:algorithm", "lr": 0.1}),
        ('optimizer = "mine.py:groups"', "proj/mine.py:groups"),
        ('reduce = "mine.py:reduce"', "proj/mine.py:reduce"),
        (
            'algorithm = {name = "diloco", optimizer = "mine.py:groups", reduce = "krum:1"}',
            {"name": "diloco", "optimizer": "proj/mine.py:groups", "reduce": "krum:1"},
        ),
        ('root = "runs"', "proj/runs"),
        ('scheduler = "scheduler.json"', "proj/scheduler.json"),
        ('certificates = "keys/berlin@1"', "proj/keys/berlin@1"),
        ('scheduler = "tcp://host:8786"', "tcp://host:8786"),
        ('topology = "edges.json"', "proj/edges.json"),
        ("rounds = 3", 3),
    ],
)
def test_paths_go_from_the_file(tmp_path: Path, monkeypatch, line: str, value: object) -> None:
    monkeypatch.chdir(tmp_path)
    Path("proj").mkdir()
    Path("proj", "train.toml").write_text(line)
    assert list(read_toml(Path("proj", "train.toml")).values()) == [value]


def test_beside_the_file_they_are_as_they_are_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.toml").write_text('model = "mine.py:model"\nroot = "runs"')
    assert read_toml(Path("train.toml")) == {"model": "mine.py:model", "root": "runs"}


@pytest.mark.parametrize("text", ["lr = ", "\x00"])
def test_what_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UsageError, match=r"cannot read .*a\.toml \(TOMLDecodeError: "):
        read_toml(tmp_path / "a.toml")


def test_data_are_recorded_by_a_path_that_holds_elsewhere(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "table.csv").write_text("a,b\n" + "1,0\n2,1\n" * 10)
    monkeypatch.chdir(tmp_path)
    recorded = plan(TrainConfig(data="csv:table.csv", model="logistic")).config.model_dump(mode="json")
    monkeypatch.chdir("/")
    assert plan(TrainConfig(**recorded)).config.data == f"csv:{tmp_path}/table.csv"
