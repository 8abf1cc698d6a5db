"""Listeners: all are notified, in their order, and lines of the executors' log reach them."""

from __future__ import annotations

import logging

from roundweave.flows.reporting.listening import Listener, listening, notice, notify_commit
from roundweave.storage.rounds.commits import Commit

COMMIT = Commit(round=3, token="a", epoch=1, state="s", tensors={})


class Recorder(Listener):
    def __init__(self, name: str, events: list[object]) -> None:
        self.name = name
        self.events = events

    def committed(self, commit: Commit, rounds: int) -> None:
        self.events.append((self.name, commit.round, rounds))

    def notice(self, text: str) -> None:
        self.events.append((self.name, text))


def test_listeners_are_notified_while_they_listen(capsys) -> None:
    events: list[object] = []
    with listening(Recorder("one", events)), listening(Recorder("two", events)):
        notify_commit(COMMIT, 9)
        notice("partition 7 is slow")
    notify_commit(COMMIT, 9)
    assert events == [("one", 3, 9), ("two", 3, 9), ("one", "partition 7 is slow"), ("two", "partition 7 is slow")]
    assert capsys.readouterr().err == ""


def test_without_listeners_a_notice_goes_to_standard_error(capsys) -> None:
    notice("a worker is lost")
    assert capsys.readouterr().err == "a worker is lost\n"


def test_lines_of_the_executors_log_are_notices_and_appear_nowhere_else(caplog) -> None:
    events: list[object] = []
    with listening(Recorder("one", events)):
        logging.getLogger("roundweave").warning("worker %s is lost", "tcp://a")
    assert events == [("one", "worker tcp://a is lost")]
    assert caplog.records == []
    logging.getLogger("roundweave").warning("nobody listens")
    assert events == [("one", "worker tcp://a is lost")]
    assert [record.getMessage() for record in caplog.records] == ["nobody listens"]
