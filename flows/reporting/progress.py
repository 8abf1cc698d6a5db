"""How a run reports while it works: to a listener in this process, and to Prefect as events and artifacts."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.events import emit_event

from flows.reporting.listening import listener
from flows.reporting.plots import as_markdown
from storage.rounds.commits import Commit
from storage.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SECONDS_BETWEEN_UPDATES = 1.0


def artifact_key(name: str) -> str:
    """A name as Prefect allows it in keys: lowercase letters, digits and dashes."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def leave_plot(figure: Figure, name: str) -> None:
    """Leave a figure as an artifact."""
    create_markdown_artifact(as_markdown(figure, name), key=f"{artifact_key(name)}-plot")


class Progress:
    """What Prefect's pages show of a run: a bar, an event for each round, and a table and a plot at its end."""

    def __init__(self, name: str, rounds: int, done: int) -> None:
        self.name = name
        self.rounds = rounds
        self.done = done
        self._key = artifact_key(name)
        self._waiting: list[Commit] = []
        self._updated = time.monotonic()
        key, description = f"{self._key}-progress", f"rounds of {name}"
        bar: Any = create_progress_artifact(self._percent(), key=key, description=description)
        self._bar: UUID = bar

    def committed(self, commit: Commit) -> None:
        """Report a round: at once where rounds are long, with its window where they are short."""
        self.done = commit.round
        self._waiting.append(commit)
        listening = listener.get()
        if listening:
            listening(commit, self.rounds)
        if commit.seconds >= SECONDS_BETWEEN_UPDATES:
            self._emit()
        if time.monotonic() - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._update_bar()

    def window_done(self) -> None:
        """Report what has not been reported."""
        self._emit()

    def finished(self, run: Run) -> None:
        """Leave the history as a table and a plot."""
        self._update_bar()
        history = run.history().reset_index()
        rows = [
            {str(name): value if math.isfinite(value) else None for name, value in row.items()}
            for row in history.to_dict("records")
        ]
        create_table_artifact(rows, key=f"{self._key}-history", description=f"rounds of {self.name}")
        leave_plot(run.plot(), self.name)

    def _emit(self) -> None:
        if not self._waiting:
            return
        rounds = [
            {
                "round": c.round,
                "state": c.state,
                "seconds": c.seconds,
                "score": asdict(c.score) if c.score else None,
            }
            for c in self._waiting
        ]
        emit_event(
            event="roundweave.round.committed" if len(rounds) == 1 else "roundweave.rounds.committed",
            resource={"prefect.resource.id": f"roundweave.run.{self.name}", "prefect.resource.name": self.name},
            payload={"rounds": rounds},
        )
        self._waiting = []

    def _update_bar(self) -> None:
        update_progress_artifact(self._bar, progress=self._percent())
        self._updated = time.monotonic()

    def _percent(self) -> float:
        return 100.0 * self.done / self.rounds
