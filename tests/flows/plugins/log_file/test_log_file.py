"""A log of trainings: a line of JSON for each event, also where several processes append to one file."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from roundweave.flows import train_flow
from roundweave.flows.plugins.log_file.log import LogFile, logged
from roundweave.flows.reporting.listening import listening, notice
from roundweave.storage.errors import DataError, RoundFailed, UsageError
from tests.flows.command.in_process import refused
from tests.flows.nights import night, trained


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_log_has_a_line_for_each_commit_and_event(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run = trained(name="logged", log_file=log)
    train_flow.fn(night(name="logged", log_file=log, on_complete="skip"))
    with pytest.raises(RoundFailed) as failed:
        train_flow.fn(night(name="fails", log_file=log, lr=1e38, local_steps=9))
    told = lines(log)
    assert [(line["event"], line["run"]) for line in told if line["event"] != "notice"] == [
        *[(event, "logged") for event in ("opened", "began", "committed", "committed", "ended")],
        *[("opened", "logged"), ("ended", "logged")],
        *[("opened", "fails"), ("began", "fails"), ("ended", "fails")],
    ]
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in told)
    rounds = [line for line in told if line["event"] == "committed"]
    commits = [run.round(number).commit for number in (1, 2)]
    assert [line["scores"] for line in rounds] == [commit.score.row() for commit in commits]
    assert [(line["round"], line["rounds"]) for line in rounds] == [(1, 2), (2, 2)]
    assert [line["seconds"] for line in rounds] == [commit.seconds for commit in commits]
    ends = [(line["status"], line.get("failure")) for line in told if line["event"] == "ended"]
    assert ends == [("complete", None), ("skipped", None), ("failed", f"RoundFailed: {failed.value}")]
    assert "logged is complete, 2 rounds; skipped, as on_complete says" in [line.get("text") for line in told]


def test_a_night_that_never_begins_is_logged_by_its_name(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with pytest.raises(DataError):
        trained(name="night-{date:%Y}", data="csv:missing.csv", target="y", log_file=log)
    (opened, ended) = lines(log)
    assert (opened["run"], opened["event"]) == ("night-{date:%Y}", "opened")
    assert (ended["run"], ended["status"]) == (f"night-{datetime.now():%Y}", "failed")


def test_a_log_that_cannot_be_written_is_refused_before_anything_begins(tmp_path, capsys) -> None:
    line = ["train", "--root", str(tmp_path / "runs"), "--executor", "inline", "--log-file"]
    for place, why in (("absent/log", "No such file"), (".", "Is a directory")):
        code, said = refused(capsys, *line, str(tmp_path / place))
        assert (code, said.startswith(f"no log can be written to {tmp_path / place}"), why in said) == (
            2,
            True,
            True,
        )
    with pytest.raises(UsageError, match="No space left"):
        trained(log_file="/dev/full")
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_fills_up_later_is_said_once_and_ends_nothing(tmp_path: Path, capsys) -> None:
    log = LogFile(tmp_path / "log")
    kept, full = os.dup(log.file), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log.file)
    with listening(log):
        for text in ("first", "second"):
            notice(text)
        os.dup2(kept, log.file)
        notice("third")
    log.close()
    whole = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line]
    assert [line.get("text", line["event"]) for line in whole] == ["opened", "third"]


def test_the_end_is_logged_of_what_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), logged(tmp_path / "log"):
        raise KeyboardInterrupt
    assert [line.get("status") for line in lines(tmp_path / "log")] == [None, "interrupted"]
