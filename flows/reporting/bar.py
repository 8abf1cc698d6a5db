"""A bar of rounds where somebody looks: in a terminal, and in a notebook."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flows.reporting.listening import Listener, listening
from flows.reporting.scores import shown_score
from storage.errors import printable
from storage.rounds.commits import Commit

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[score]}", markup=False),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)

RECENT = 100
"""Rounds over which updates a second are counted."""

NOTEBOOK_SECONDS = 0.2
"""How often a notebook's cell is drawn anew."""


class Bar(Listener):
    """A listener that shows rounds done, scores and the time left."""

    def __init__(self, console: Console, total: int, shown: bool = True) -> None:
        self.console = console
        shown = shown and console.is_terminal and not console.is_jupyter
        self.progress = Progress(
            *COLUMNS, console=console, transient=True, refresh_per_second=4, disable=not shown
        )
        self.task = self.progress.add_task("starting", total=total, score="")
        self._scored = ""
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def committed(self, commit: Commit, rounds: int) -> None:
        """Show a round, the last score, and of a parameter server how stale and how many its updates are."""
        self._scored = shown_score(commit.score) or self._scored
        told = "  ".join(filter(None, [self._scored, self._pace(commit)]))
        self.progress.update(self.task, completed=commit.round, total=rounds, description="round", score=told)

    def _pace(self, commit: Commit) -> str:
        if commit.server is None:
            return ""
        self._recent.append((commit.time, len(commit.updates)))
        (began, first), (ended, _) = self._recent[0], self._recent[-1]
        updates = sum(count for _, count in self._recent) - first
        speed = f"  {updates / (ended - began):.0f} updates/s" if ended > began else ""
        stale = [record.arrival.staleness for record in commit.updates.values() if record.arrival]
        return f"staleness {max(stale, default=0)}{speed}"

    def progressed(self, done: int, total: int, text: str) -> None:
        """Show how far it is."""
        self.progress.update(self.task, completed=done, total=total, description="round", score=printable(text))

    def notice(self, text: str) -> None:
        """Show one line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)


class NotebookBar(Bar):
    """The same as a notebook's cell shows it; rich's own way there needs a package for widgets."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        from IPython.display import display

        self.cell: Any = display(self.progress, display_id=True)
        self.drawn = time.monotonic()

    def committed(self, commit: Commit, rounds: int) -> None:
        """Show a round, the last one always."""
        super().committed(commit, rounds)
        self._draw_again()

    def progressed(self, done: int, total: int, text: str) -> None:
        """Show how far it is, the end always."""
        super().progressed(done, total, text)
        self._draw_again()

    def _draw_again(self) -> None:
        if time.monotonic() - self.drawn >= NOTEBOOK_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Draw the cell anew."""
        self.cell.update(self.progress)
        self.drawn = time.monotonic()

    def notice(self, text: str) -> None:
        """Show one line below the bar."""
        print(text)


@contextmanager
def bar_of_rounds(total: int, shown: bool = True) -> Iterator[None]:
    """Within, a bar shows the rounds where somebody looks, and notices go to standard error in any case."""
    console = Console(stderr=True, highlight=False, emoji=False)
    if console.is_jupyter and shown:
        cell = NotebookBar(console, total)
        with listening(cell):
            try:
                yield
            finally:
                cell.draw()
        return
    bar = Bar(console, total, shown)
    with bar.progress, listening(bar):
        yield
