"""Sections of a run are read as they were written, of the round of which they were written."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import roundweave as rw
from roundweave.storage.rounds.commits import Section, section_key
from roundweave.storage.values.digests import sealed
from tests.flows.command.in_process import said

CONTENT = {"at": 3, "words": ["one", "ü"], "deep": {"none": None}}


@pytest.fixture
def run(stored) -> rw.Run:
    """A run with a section that was written when it had four rounds."""
    run = stored("four")
    run.write_section("mine", CONTENT)
    return run


def test_a_section_is_read_as_it_was_written_and_each_round_has_its_own(run) -> None:
    again = rw.open_run(run.path)
    assert (again.section("mine"), again.section("other")) == (CONTENT, None)
    run.write_section("mine", [4])
    assert again.refresh().section("mine") == [4]
    run.refresh(until=2).write_section("mine", [2])
    assert [again.section("mine", round) for round in (1, 2, -3, 4)] == [None, [2], [2], [4]]
    assert again.verify().sound
    (run.path / section_key("mine", 4)).rename(run.path / section_key("mine", 3))
    assert again.refresh().section("mine") is None
    assert [each.path for each in again.verify().findings] == [section_key("mine", 3)]


@pytest.mark.parametrize("change", [lambda text: text.replace("one", "two"), lambda text: text[:-9]])
def test_one_that_was_changed_is_none_and_verify_names_it(run, change) -> None:
    file = run.path / section_key("mine", 4)
    file.write_text(change(file.read_text()))
    assert run.refresh().section("mine") is None
    assert [each.path for each in run.verify().findings] == [section_key("mine", 4)]


def test_it_is_copied_and_removed_with_the_run(run, tmp_path, capsys) -> None:
    said(capsys, "cp", "four", str(tmp_path / "other"))
    copy = rw.open_run(tmp_path / "other" / "four.zarr")
    assert (copy.section("mine"), copy.verify().sound) == (CONTENT, True)
    said(capsys, "rm", "four", "--yes")
    assert not run.path.exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "-a", "a b", "a\n"])
def test_a_name_that_leads_elsewhere_is_refused(run, name: str) -> None:
    with pytest.raises(rw.UsageError, match="is no name of a section; give letters, digits"):
        run.write_section(name, 1)
    with pytest.raises(rw.UsageError, match="is no name of a section"):
        run.section(name)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("mine", {1, 2}, "Object of type set is not JSON serializable"),
        ("mine", "x" * (1 << 20), "1048[0-9]+ bytes"),
        ("mine", "\ud800", "Invalid JSON"),
        ("judgement", {"accepted": "perhaps"}, "it has another form"),
        ("ending", 3, "it has another form"),
    ],
)
def test_what_could_not_be_read_again_is_refused(run, name: str, content, says: str) -> None:
    with pytest.raises(rw.UsageError, match=f"^section {name} cannot be written: .*{says}.*megabyte at most$"):
        run.write_section(name, content)
    assert (run.refresh().section(name), run.verify().sound) == (CONTENT if name == "mine" else None, True)


def test_a_judgement_of_another_form_from_elsewhere_is_none_and_verify_names_it(run) -> None:
    for name in ("judgement", "ending"):
        (file := run.path / section_key(name, 4)).parent.mkdir()
        file.write_bytes(sealed(Section(name, 4, run.chain, {"accepted": 1, "by": 3})))
    assert (run.refresh().judgement, run.stop, run.status) == (None, None, "complete")
    assert [each.path for each in run.verify().findings] == [section_key("ending", 4), section_key("judgement", 4)]


@dataclass(frozen=True)
class Judgement:
    """What runs had before there were sections."""

    round: int
    chain: str
    accepted: bool
    reasons: list[str]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_run_of_before_that_was_judged_stays_so(stored, accepted: bool) -> None:
    run = stored("four")
    (file := run.path / "commits/judgements/4.json").parent.mkdir()
    file.write_bytes(sealed(Judgement(4, run.chain, accepted, ["loss < 9: 2.1"])))
    run = rw.open_run(run.path)
    assert (run.judgement.accepted, run.judgement.reasons) == (accepted, ["loss < 9: 2.1"])
    assert (run.status, run.verify().sound) == ("complete" if accepted else "rejected", True)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"accepted": not accepted}))
    assert [each.path for each in rw.open_run(run.path).verify().findings] == ["commits/judgements/4.json"]
    assert rw.open_run(run.path).judgement is None
