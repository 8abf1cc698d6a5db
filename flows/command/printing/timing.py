"""Training as the command does it: with its seconds, a line a round where no terminal is, and Dask silent."""

from __future__ import annotations

import logging
import sys
import time

import psutil

from flows.config.train import TrainConfig
from flows.reporting.listening import Listener, listening
from flows.reporting.scores import shown_commit
from storage.rounds.commits import Commit
from storage.runs.run import Run


class Timed(Listener):
    """A listener that keeps when each round was committed, in seconds from the command's start."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet or sys.stderr.isatty()
        self.began: float = psutil.Process().create_time()
        self.rounds: list[tuple[float, Commit]] = []

    def committed(self, commit: Commit, rounds: int) -> None:
        """Keep a round, and print it where there is no bar and a word is wanted."""
        self.rounds.append((self.elapsed(), commit))
        if not self.quiet:
            print(f"round {commit.round}/{rounds}  {shown_commit(commit)}".rstrip(), file=sys.stderr)

    def elapsed(self) -> float:
        """Seconds since the command's start."""
        return time.time() - self.began

    def summary(self) -> dict[str, float | None]:
        """How long all took, and the way to the first round."""
        return {"seconds": self.elapsed(), "first_round_seconds": self.rounds[0][0] if self.rounds else None}


def train_timed(config: TrainConfig, silent: bool = False) -> tuple[Run, dict[str, float | None]]:
    """The run, and its seconds; where `silent`, nothing is shown of how it goes."""
    quiet()
    from flows.training.running import train

    timed = Timed(silent)
    with listening(timed):
        run = train(config, bar=not silent)
    return run, timed.summary()


def quiet() -> None:
    """Silence Dask: the command prints errors in one line, and its log would add tracebacks."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
