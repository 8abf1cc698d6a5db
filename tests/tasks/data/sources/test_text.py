"""The next character of a text, by hand and on the roles of Shakespeare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Partitions, Split, find_source
from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.text import Text, characters


def test_windows_by_hand(tmp_path) -> None:
    """Of "abcabca", a = 0, b = 1, c = 2: two windows of three, each followed by what comes next."""
    (tmp_path / "t.txt").write_text("abcabca")
    dataset = Text(str(tmp_path / "t.txt"), 3).load()
    assert dataset.train.inputs.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert dataset.train.targets.tolist() == [[1, 2, 0], [1, 2, 0]]
    assert dataset.train.inputs.dtype == dataset.train.targets.dtype == torch.int64
    assert (dataset.classes, dict(dataset.columns)) == (3, {})
    found = Partitions(Text(str(tmp_path / "t.txt"), 6), Split(1)).describe(0)
    assert (found.labels, found.classes, found.inputs, found.targets) == (True, 3, (6,), (6,))


def test_the_names_of_texts_are_roles_and_share_a_vocabulary(tmp_path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"B": "cbabc", "A": "z", "C": "ca\u00e9"}))
    dataset = Text(str(tmp_path / "t.json"), 2).load()
    assert dataset.train.inputs.tolist() == [[2, 1], [0, 1], [2, 0]]
    assert dataset.columns["role"].tolist() == ["B", "B", "C"]
    assert dataset.classes == 5


def test_the_number_of_characters_may_follow_the_file() -> None:
    assert characters("/a/b.txt") == Text("/a/b.txt", 64)
    assert characters("/a/b.txt:80") == Text("/a/b.txt", 80)
    assert characters("/a/b:c.txt") == Text("/a/b:c.txt", 64)
    assert find_source("text:t.json:9") == Text(str(Path("t.json").resolve()), 9)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file .*t.json"),
        (b"\xff\xfe", "cannot be read as text: UnicodeDecodeError"),
        (b"{", "cannot be read as text: JSONDecodeError"),
        (b"[1]", "must be a JSON object of texts by name"),
        (b"{}", "must be a JSON object of texts by name"),
        (b'{"a": 3}', "must be a JSON object of texts by name"),
        (b"[" * 100_000, "cannot be read as text"),
        (b'{"a": ""}', "has no text of more than 64 characters"),
    ],
)
def test_other_files_are_one_clear_line(tmp_path, content: bytes | None, says: str) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        Text(str(path)).load()
    assert str(path) in str(caught.value)


@given(st.text(st.characters(codec="utf-8"), min_size=2, max_size=60), st.integers(1, 9))
@settings(deadline=None, max_examples=10)
def test_a_target_is_the_input_after(tmp_path_factory, text: str, time: int) -> None:
    path = tmp_path_factory.mktemp("text") / "t.json"
    path.write_text(json.dumps({"a": text}))
    if len(text) <= time:
        with pytest.raises(DataError, match=f"{path} has no text of more than {time} characters"):
            Text(str(path), time).load()
        return
    dataset = Text(str(path), time).load()
    vocabulary = sorted(set(text))
    read = "".join(vocabulary[code] for code in dataset.train.inputs.flatten())
    after = "".join(vocabulary[code] for code in dataset.train.targets.flatten())
    count = (len(text) - 1) // time * time
    assert (read, after) == (text[:count], text[1 : count + 1])
    assert dataset.classes == len(vocabulary)
