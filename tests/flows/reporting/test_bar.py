"""The bar: what it says of a round beside how many are done."""

from __future__ import annotations

import sys
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from roundweave.flows.reporting.bar import Bar, bar_of_rounds
from roundweave.flows.reporting.listening import notify_commit
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, Score, ServerRecord, UpdateRecord


def committed(round: int, *stale: int, score: Score | None = None) -> Commit:
    """A round of a server with so stale updates."""
    updates = {p: UpdateRecord("d", 1, arrival=Arrival(1, 0, each)) for p, each in enumerate(stale)}
    server = ServerRecord({0: InFlight()}) if stale else None
    return Commit(round, "t", 1, "s", {}, updates=updates, server=server, score=score)


def test_a_round_has_its_last_score_and_that_of_a_server_the_largest_staleness() -> None:
    bar, shown = Bar(Console(file=StringIO()), 9), []
    scores = [Score(0.5, {"accuracy": 0.25}, 8), None, Score(0.4, {}, 8)]
    for round, stale, score in zip((1, 2, 3), ((), (), (0, 2)), scores, strict=True):
        bar.committed(committed(round, *stale, score=score), 9)
        shown.append(str(bar.progress.tasks[0].fields["score"]))
    assert shown == [*["loss 0.5000  accuracy 25.00%"] * 2, "loss 0.4000  staleness 2"]


def test_a_terminal_shows_how_many_rounds_are_done(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does for what its cells start
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with bar_of_rounds(2):
            for number in (1, 2):
                notify_commit(committed(number), 2)
        assert ("2/2" in capsys.readouterr().err) is terminal


def test_a_notebook_shows_one_bar_also_of_a_thread_that_outlives_its_cell(monkeypatch) -> None:
    """Then IPython does not say that this is a kernel. A bar that never moved is taken away."""
    pytest.importorskip("IPython", reason="a kernel needs the development dependencies")
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", ModuleType("kernelapp"))
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: SimpleNamespace(update=drawn))
    shown: list[str] = []

    def drawn(value: Any, raw: bool = False) -> None:
        shown.append(value["text/plain"] if raw else str(value.tasks[0].completed))

    with bar_of_rounds(2):
        for number in (1, 2):
            notify_commit(committed(number), 2)
    with pytest.raises(KeyboardInterrupt, match=r"^no run had begun, so nothing was stored$"), bar_of_rounds(2):
        raise KeyboardInterrupt
    assert shown == ["2", ""]
