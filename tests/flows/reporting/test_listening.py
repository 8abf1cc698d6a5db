"""Listeners hear all in order, lines of the executors' log too; a thread reports, and no function waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from roundweave.flows.reporting.listening import (
    Listener,
    follow,
    listening,
    notice,
    notify_commit,
    reported,
)


class Heard(Listener):
    """Writes down what it is notified of."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def committed(self, commit: Any, rounds: int) -> None:
        self.all.append(commit.round)

    def notice(self, text: str) -> None:
        self.all.append(text)


def heard(log: Heard, name: str) -> Callable[[Callable[[], Any]], Any]:
    """A report that writes down where it begins, how it ends, and in a thread what it is notified of between."""

    def report(function: Callable[[], Any]) -> Any:
        log.all.append(f"{name} begins")
        with listening(log if name == "outer" else Listener()):
            try:
                return function()
            except BaseException as error:
                log.all.append(f"{name}: {error!r}")
                raise
            finally:
                log.all.append(f"{name} ends")

    return report


def commit(round: int) -> None:
    """Notify of a round."""
    notify_commit(SimpleNamespace(round=round), 9)  # type: ignore[arg-type]


def test_reports_are_in_the_order_of_what_they_are_about_and_each_listener_hears_all_once() -> None:
    user, log = Heard(), Heard()

    def train() -> int:
        commit(1)
        assert reported(heard(log, "inner"), lambda: commit(2)) is None
        notice("a line")
        return 3

    with listening(user):
        assert follow(heard(log, "outer"), train) == 3
    assert user.all == [1, 2, "a line"]
    assert log.all == ["outer begins", 1, "inner begins", 2, "inner ends", "a line", "outer ends"]


def test_an_error_is_raised_where_it_is_and_ends_all_reports_of_it() -> None:
    user, log = Heard(), Heard()

    def fail() -> None:
        commit(1)
        raise ValueError(2)

    with listening(user), pytest.raises(ValueError, match="2"):
        follow(heard(log, "outer"), lambda: reported(heard(log, "inner"), fail))
    error = "ValueError(2)"
    ends = [f"inner: {error}", "inner ends", f"outer: {error}", "outer ends"]
    assert log.all == ["outer begins", "inner begins", 1, *ends]
    assert user.all == [1]


def test_a_function_is_done_though_nothing_can_be_reported_until_then() -> None:
    done, log = threading.Event(), Heard()

    def late(function: Callable[[], Any]) -> Any:
        assert done.wait(60)
        return heard(log, "outer")(function)

    def train() -> None:
        commit(1)
        commit(2)
        done.set()

    follow(late, train)
    assert log.all == ["outer begins", 1, 2, "outer ends"]


def test_what_cannot_be_reported_is_said_once_and_changes_nothing() -> None:
    user = Heard()

    def fails(function: Callable[[], Any]) -> Any:
        raise OSError("no server")

    with listening(user):
        assert follow(fails, lambda: commit(1) or 5) == 5
    assert user.all == [1, "Prefect did not get all reports (OSError: no server); the run itself is not affected"]


def test_listeners_are_notified_while_they_listen(capsys) -> None:
    one, two = Heard(), Heard()
    with listening(one):
        with listening(two):
            commit(3)
            notice("partition 7 is slow")
        commit(4)
    commit(5)
    assert (one.all, two.all) == ([3, "partition 7 is slow", 4], [3, "partition 7 is slow"])
    assert capsys.readouterr().err == ""


def test_lines_of_the_executors_log_are_notices_and_appear_nowhere_else(caplog) -> None:
    user, lines = Heard(), logging.getLogger("roundweave")
    with listening(user):
        lines.warning("worker %s is lost", "tcp://a")
    assert (user.all, caplog.records) == (["worker tcp://a is lost"], [])
    lines.warning("nobody listens")
    assert user.all == ["worker tcp://a is lost"]
    assert [record.getMessage() for record in caplog.records] == ["nobody listens"]
