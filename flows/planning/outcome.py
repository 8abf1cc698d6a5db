"""What was predicted of a run beside what it took."""

from __future__ import annotations

from dataclasses import dataclass

from flows.config.train import Planned
from storage.runs.run import Run


@dataclass(frozen=True)
class Outcome:
    """What was planned, and the mean seconds of the rounds that were done; None before there are any."""

    planned: Planned
    seconds: float | None

    @property
    def ratio(self) -> float | None:
        """So many times as long as predicted."""
        return None if self.seconds is None else self.seconds / self.planned.seconds


def outcome(run: Run) -> Outcome | None:
    """What became of a run's plan; None where none was made."""
    planned = run.config.get("planned")
    return None if planned is None else Outcome(Planned(**planned), seconds_of_rounds(run))


def seconds_of_rounds(run: Run) -> float | None:
    """The mean seconds of the rounds after the first quarter, in which caches fill; None before there are any."""
    seconds = run.history()["seconds"].iloc[1:]  # the state that a run begins with is no round
    later = seconds.iloc[max(1, len(seconds) // 4) :]
    return float(later.mean()) if len(later) else None


def told(result: Outcome) -> str:
    """The strategy, what was predicted of it, and what it took, in a line."""
    planned = result.planned
    predicted = f"{planned.seconds:.3g} s a round predicted ({planned.fastest:.3g} to {planned.slowest:.3g})"
    taken = f", {result.seconds:.3g} taken, {result.ratio:.2f} times as long" if result.seconds else ""
    return f"{planned.strategy}, for {planned.workers} workers: {predicted}{taken}"
