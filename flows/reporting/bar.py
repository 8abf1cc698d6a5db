"""A progress bar of rounds, shown in a terminal or a notebook and nowhere else."""

from __future__ import annotations

import sys
import time
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

from roundweave.flows.reporting.listening import Listener, begun, going_on, listening, shown_commit, shown_score
from roundweave.storage.errors import printable
from roundweave.storage.rounds.commits import Commit

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(20),  # with scores and times it fits a terminal and a notebook beside its files
    MofNCompleteColumn(),
    TextColumn("{task.fields[score]}", markup=False),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)

NOTEBOOK_SECONDS = 0.2
"""The shortest time between two redraws of a notebook's cell, in seconds."""


class Bar(Listener):
    """A listener that draws a progress bar: rounds done, the latest score and the time left.

    With `shown` false, or where the console is neither a terminal nor a notebook, no bar is drawn and only notices
    are printed. A notebook's cell shows the bar without ipywidgets, which rich's own drawing would need there.
    """

    def __init__(self, console: Console, total: int, shown: bool = True) -> None:
        self.console = console
        # A kernel's FORCE_COLOR makes rich take the pipe of a command that a cell runs for a terminal.
        in_terminal = shown and console.is_terminal and console.file.isatty() and not console.is_jupyter
        self.progress = Progress(
            *COLUMNS, console=console, transient=True, refresh_per_second=4, disable=not in_terminal
        )
        self.task = self.progress.add_task("starting", total=total, score="")
        self._score = ""
        self._cell: Any = None
        if shown and console.is_jupyter:
            from IPython.display import display

            self._cell = display(self.progress, display_id=True)
        self._drawn = time.monotonic()

    def committed(self, commit: Commit, rounds: int) -> None:
        """Show the round and the latest score; of a server also how stale updates were."""
        self._score = shown_score(commit.score) or self._score
        self._update(commit.round, rounds, shown_commit(commit, self._score))

    def progressed(self, done: int, total: int, text: str) -> None:
        """Show how many of `total` parts of the work are done, and the text about the last one."""
        self._update(done, total, printable(text))

    def _update(self, done: int, total: int, text: str) -> None:
        self.progress.update(self.task, completed=done, total=total, description="round", score=text)
        if time.monotonic() - self._drawn >= NOTEBOOK_SECONDS:
            self.draw()

    def draw(self, last: bool = False) -> None:
        """Redraw a notebook's cell, from which a bar that never moved goes at last; in a terminal rich does."""
        gone = last and not self.progress.tasks[0].completed
        if self._cell:
            self._cell.update({"text/plain": ""} if gone else self.progress, raw=gone)
        self._drawn = time.monotonic()

    def notice(self, text: str) -> None:
        """Print one line above the bar, or below it in a notebook."""
        if self._cell:
            print(text)
        else:
            self.console.print(text, markup=False, soft_wrap=True)


class Interrupted(KeyboardInterrupt):
    """A `KeyboardInterrupt` with a short message: a notebook shows one line, a script a short traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted; {self}"]


@contextmanager
def bar_of_rounds(total: int, shown: bool = True) -> Iterator[None]:
    """Show a progress bar of `total` rounds while the context is open, in a terminal or a notebook.

    Notices are printed to standard error in any case, also if there is no bar. A `KeyboardInterrupt` says what is
    stored.
    """
    kernel = "ipykernel.kernelapp" in sys.modules or None  # what rich asks is there only while a cell runs
    console = Console(stderr=True, highlight=False, emoji=False, force_jupyter=kernel)
    bar, before = Bar(console, total, shown), len(begun)
    with bar.progress, listening(bar):
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(going_on(begun[-1] if len(begun) > before else None)) from None
        finally:
            bar.draw(last=True)
