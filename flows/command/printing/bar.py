"""What a terminal shows while a flow runs: a bar of rounds, and nothing of Prefect's and Dask's own messages."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flows.command.printing.tables import shown_score
from flows.config.train import TrainConfig
from flows.reporting.listening import Listener, listener
from storage.rounds.commits import Commit
from storage.runs.run import Run

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[score]}", markup=False),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


def train_with_bar(config: TrainConfig) -> tuple[Run, dict[str, float | None]]:
    """Train with a progress bar on the terminal; also its seconds, counted from the command's start."""
    quiet()
    from flows.training.running import train

    began = psutil.Process().create_time()
    rounds: list[tuple[float, Commit]] = []
    with _bar(config.rounds) as shown:

        def listen(commit: Commit, total: int) -> None:
            rounds.append((time.time() - began, commit))
            shown(commit, total)

        token = listener.set(listen)
        try:
            run = train(config)
        finally:
            listener.reset(token)
    per_round = [commit.seconds for _, commit in rounds[1:]]
    return run, {
        "seconds": time.time() - began,
        "first_round_seconds": rounds[0][0] if rounds else None,
        "seconds_per_round": statistics.median(per_round) if per_round else None,
    }


def quiet() -> None:
    """Silence Prefect and Dask; before Prefect is imported."""
    # The command prints errors in one line; Prefect (told before its import) and Dask would add tracebacks.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


@contextmanager
def _bar(total: int) -> Iterator[Listener]:
    console = Console(stderr=True, highlight=False)
    with Progress(*COLUMNS, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total, score="")

        def shown(commit: Commit, total: int) -> None:
            score = shown_score(commit.score)
            progress.update(task, completed=commit.round, total=total, description="round", score=score)
            if not console.is_terminal:
                console.print(f"round {commit.round}/{total}  {score}")

        yield shown
