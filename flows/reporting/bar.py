"""A progress bar of rounds, shown in a terminal or a notebook and nowhere else."""

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
"""The number of latest rounds over which the bar averages updates per second."""

NOTEBOOK_SECONDS = 0.2
"""The shortest time between two redraws of a notebook's cell, in seconds."""


class Bar(Listener):
    """A listener that draws a progress bar: rounds done, the latest score and the time left.

    With `shown` false, or where the console is no terminal, no bar is drawn and only notices are printed.
    """

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
        """Show the round and the latest score; with a parameter server also staleness and updates per second."""
        self._scored = shown_score(commit.score) or self._scored
        line = "  ".join(filter(None, [self._scored, self._server_speed(commit)]))
        self.progress.update(self.task, completed=commit.round, total=rounds, description="round", score=line)

    def _server_speed(self, commit: Commit) -> str:
        """The staleness and the updates per second of a parameter server; empty for other runs."""
        if commit.server is None:
            return ""
        self._recent.append((commit.time, len(commit.updates)))
        (began, first), (ended, _) = self._recent[0], self._recent[-1]
        updates = sum(count for _, count in self._recent) - first
        speed = f"  {updates / (ended - began):.0f} updates/s" if ended > began else ""
        stale = [record.arrival.staleness for record in commit.updates.values() if record.arrival]
        return f"staleness {max(stale, default=0)}{speed}"

    def progressed(self, done: int, total: int, text: str) -> None:
        """Show how many of `total` parts of the work are done, and the text about the last one."""
        self.progress.update(self.task, completed=done, total=total, description="round", score=printable(text))

    def notice(self, text: str) -> None:
        """Print one line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)


class NotebookBar(Bar):
    """A bar that a notebook's cell shows. It is drawn without ipywidgets, which rich's own bar would need."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        from IPython.display import display

        self.cell: Any = display(self.progress, display_id=True)
        self.drawn = time.monotonic()

    def committed(self, commit: Commit, rounds: int) -> None:
        super().committed(commit, rounds)
        self._draw_again()

    def progressed(self, done: int, total: int, text: str) -> None:
        super().progressed(done, total, text)
        self._draw_again()

    def _draw_again(self) -> None:
        if time.monotonic() - self.drawn >= NOTEBOOK_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Redraw the cell now."""
        self.cell.update(self.progress)
        self.drawn = time.monotonic()

    def notice(self, text: str) -> None:
        """Print one line below the bar."""
        print(text)


@contextmanager
def bar_of_rounds(total: int, shown: bool = True) -> Iterator[None]:
    """Show a progress bar of `total` rounds while the context is open, in a terminal or a notebook.

    Notices are printed to standard error in any case, also where there is no bar.
    """
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
