"""The bar: what it says of a round beside how many are done."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from roundweave.flows.reporting.bar import Bar, bar_of_rounds
from roundweave.flows.reporting.listening import notify_commit
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, Score, ServerRecord, UpdateRecord


@pytest.fixture
def bar() -> Bar:
    return Bar(Console(file=StringIO()), 9)


def shown(bar: Bar, commit: Commit) -> str:
    bar.committed(commit, 9)
    return str(bar.progress.tasks[0].fields["score"])


def committed(round: int, *stale: int, score: Score | None = None) -> Commit:
    """A round of a server with so stale updates."""
    updates = {p: UpdateRecord("d", 1, arrival=Arrival(1, 0, each)) for p, each in enumerate(stale)}
    server = ServerRecord({0: InFlight()}) if stale else None
    return Commit(round, "t", 1, "s", {}, updates=updates, server=server, score=score)


def test_a_round_of_all_partitions_has_its_last_score(bar) -> None:
    assert shown(bar, committed(1, score=Score(0.5, {"accuracy": 0.25}, 8))) == "loss 0.5000  accuracy 25.00%"
    assert shown(bar, committed(2)) == "loss 0.5000  accuracy 25.00%"


def test_a_round_of_a_server_has_the_largest_staleness(bar) -> None:
    assert shown(bar, committed(1, 0, 2)) == "staleness 2"
    assert shown(bar, committed(2, 3, score=Score(0.5, {}, 8))) == "loss 0.5000  staleness 3"


def test_a_terminal_shows_how_many_rounds_are_done(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bar_of_rounds(2):
        for number in (1, 2):
            notify_commit(committed(number), 2)
    assert "2/2" in capsys.readouterr().err
