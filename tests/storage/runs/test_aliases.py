"""Aliases: who has one, and a history that no two processes can break."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roundweave.storage.errors import StoreDamaged, UsageError
from roundweave.storage.runs.names import FOLDER, alias_history, aliases, give_alias, holder_of, holders


def test_an_alias_is_a_history(tmp_path: Path) -> None:
    assert (aliases(tmp_path), holders(tmp_path), holder_of(tmp_path, "champion")) == ([], {}, None)
    for run in ("a", "b", None):
        assert give_alias(tmp_path, "champion", run, f"because of {run}") is None
    give_alias(tmp_path, "other", "a", "", 3, "0" * 64)
    assert aliases(tmp_path) == ["champion", "other"]
    assert holders(tmp_path) == {"other": "a"}
    assert [(each.number, each.run, each.why) for each in alias_history(tmp_path, "champion")] == [
        (1, "a", "because of a"),
        (2, "b", "because of b"),
        (3, None, "because of None"),
    ]
    assert give_alias(tmp_path, "champion", "c", "", unless=lambda entries: f"of {len(entries)}") == "of 3"
    assert holder_of(tmp_path, "champion") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a b", "x" * 251, "-a"])
def test_what_can_be_no_name_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name of an alias"):
        give_alias(tmp_path, name, "a", "")
    assert holder_of(tmp_path, name) is None


def test_a_history_that_was_changed_is_refused(tmp_path: Path) -> None:
    for run in ("a", "b", "c"):
        give_alias(tmp_path, "champion", run, "")
    second = tmp_path / FOLDER / "champion/2.json"
    second.write_text(second.read_text().replace('"b"', '"x"'))
    with pytest.raises(StoreDamaged, match=r"champion/2.json is not what was written; restore it"):
        alias_history(tmp_path, "champion")
    second.unlink()
    with pytest.raises(StoreDamaged, match=r"champion/2.json is not what was written; restore it"):
        give_alias(tmp_path, "champion", "d", "")
    give_alias(tmp_path, "other", "b", "")
    give_alias(tmp_path, "other", "b", "")
    (tmp_path / FOLDER / "other/2.json").rename(second)  # a whole one, of another history
    with pytest.raises(StoreDamaged, match=r"does not follow the one before"):
        alias_history(tmp_path, "champion")


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_of_many_at_once_each_has_its_place_in_one_history(kind: str, request, tmp_path: Path) -> None:
    root = f"{request.getfixturevalue('s3').bucket()}/runs" if kind == "bucket" else str(tmp_path)

    def give(number: int) -> None:
        for time in range(3):
            give_alias(root, "champion", f"night{number}-{time}", "it is better")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(give, range(3)))
    history = alias_history(root, "champion")
    assert [each.number for each in history] == list(range(1, 10))
    for number in range(3):
        own = [each.run for each in history if f"{each.run}".startswith(f"night{number}-")]
        assert own == [f"night{number}-{time}" for time in range(3)]
    assert aliases(root) == ["champion"]
