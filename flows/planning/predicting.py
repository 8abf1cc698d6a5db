"""What each strategy will take, by formulas from what was measured.

With t the seconds of a step, s those of a map besides its steps, e those of scoring, and o what an executor
takes for a round besides, a round of k local steps on P partitions takes o + ceil(P / W)(s + k t) + e / E on W
workers, if each E-th is scored; an epoch of N examples in batches of B has N / (k B P) of them. Arrivals at a
server, rounds of one step, and steps of a network that ranks share are short: they are tried, and take what they
took; and so are strategies that are close to the best, if their rounds are not long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf

from flows.planning.calibrating import Calibration, memory_left, memory_needed
from flows.planning.strategies import Strategy, base
from flows.planning.trying import Tried
from flows.planning.workload import Workload
from storage.parsing import MOST_ROUNDS
from tasks.planning.measuring import Pace

SPREAD = 0.1
"""By this share a prediction may be off at least: trials last for seconds, and machines change their pace."""

BESIDES = {"inline": "bookkeeping", "graph": "scheduling", "gang": "exchanging"}
"""What an executor does in a round besides mapping, scoring, reducing and storing."""


@dataclass(frozen=True)
class Prediction:
    """What a strategy will take: seconds a round, at best and at worst, and an epoch; bytes a round and a process.

    `parts` are the seconds of a round by what they go to; `refused` says why the strategy cannot be chosen.
    """

    strategy: Strategy
    seconds: float
    fastest: float
    slowest: float
    epoch: float
    stored: int
    sent: int
    memory: int
    parts: Mapping[str, float] = field(default_factory=dict)
    refused: str | None = None

    @property
    def bound(self) -> str:
        """What takes most of a round."""
        return max(self.parts, key=lambda part: self.parts[part], default="")


def predict(strategy: Strategy, work: Workload, measured: Calibration) -> Prediction:
    """What a strategy will take; refused where it was tried in vain, is other work, or needs more memory."""
    pace = _pace(strategy, measured)
    memory, left = memory_needed(strategy, work, pace), memory_left(pace)
    trial = _trial(strategy, measured)
    refused = _other_work(strategy, work) or measured.failed.get(strategy.name)
    if refused is None and memory > left:
        refused = f"a process needs {memory >> 20} MiB of memory and has {left >> 20}"
    if refused is not None or trial is None:
        refused = refused or "it could not be tried"
        return Prediction(strategy, inf, inf, inf, inf, 0, 0, memory, refused=refused)
    parts = _parts(strategy, work, trial, measured)
    seconds = sum(parts.values())
    fastest, slowest = _range(trial, seconds)
    moved = 0 if strategy.executor == "inline" else 2 * work.state * strategy.updates
    return Prediction(
        strategy,
        seconds,
        fastest,
        slowest,
        strategy.rounds(work) * seconds,
        (1 + strategy.updates) * work.state,
        moved if trial.sent is None else trial.sent,
        memory,
        parts,
    )


def _other_work(strategy: Strategy, work: Workload) -> str | None:
    """Why a strategy cannot do the work as it is."""
    if lacks := strategy.lacks(work):
        return f"{strategy.algorithm} takes no {', '.join(lacks)}"
    rounds = strategy.rounds(work) * work.epochs
    return f"it has {rounds:,.0f} rounds, and a run at most {MOST_ROUNDS:,}" if rounds > MOST_ROUNDS else None


def _pace(strategy: Strategy, measured: Calibration) -> Pace:
    return measured.alone[strategy.threads] if strategy.executor == "inline" else measured.together


def _trial(strategy: Strategy, measured: Calibration) -> Tried | None:
    """The rounds that were tried of a strategy, else those of one step by its executor."""
    if strategy.name in measured.rounds or strategy.is_tried:
        return measured.rounds.get(strategy.name)
    return measured.rounds.get(base(strategy.executor, measured.workers).name)


def _parts(strategy: Strategy, work: Workload, trial: Tried, measured: Calibration) -> dict[str, float]:
    """The seconds of a round by what they go to."""
    pace = _pace(strategy, measured)
    maps = _maps(strategy, measured)
    if strategy.name in measured.rounds:
        maps = min(maps, trial.seconds)
        besides = trial.seconds - maps
    else:
        one = base(strategy.executor, measured.workers)
        besides = max(0.0, trial.seconds - _maps(one, measured)) * strategy.partitions / one.partitions
    storing = min(besides, (1 + strategy.updates) * work.state * pace.store)
    reducing = min(besides - storing, strategy.updates * work.state * pace.reduce)
    scores = pace.score * _turns(strategy, measured) / max(1, round(work.scored * strategy.rounds(work)))
    rest = {BESIDES[strategy.executor]: besides - storing - reducing}
    return {"maps": maps, "storing": storing, "reducing": reducing, "scoring": scores, **rest}


def _turns(strategy: Strategy, measured: Calibration) -> int:
    """How many partitions a process maps and scores, one after the other."""
    return strategy.partitions if strategy.executor == "inline" else ceil(strategy.partitions / measured.workers)


def _maps(strategy: Strategy, measured: Calibration) -> float:
    """Seconds of a round's maps; of arrivals, those of the one that each worker is at meanwhile."""
    pace = _pace(strategy, measured)
    maps = _turns(strategy, measured) * (pace.start + strategy.steps * pace.step)
    return maps / measured.workers if strategy.arrives else maps


def _range(trial: Tried, seconds: float) -> tuple[float, float]:
    """The least and the most that rounds are likely to take, as those that were tried varied."""
    low, high = trial.fastest / trial.seconds, trial.slowest / trial.seconds
    return seconds * min(1 - SPREAD, low), seconds * max(1 + SPREAD, high)
