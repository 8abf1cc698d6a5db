"""What each strategy will take, by formulas from what was measured.

With t the seconds of a step, s those of a map besides its steps, and o what an executor takes for a round besides
its maps, a round of k local steps on P partitions takes o + ceil(P / W)(s + k t) on W workers, and an epoch of N
examples in batches of B has N / (k B P) of them. Arrivals at a server, rounds of one step, and steps of a network
that ranks share are short: they are tried, and predicted to take what they took.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from flows.planning.calibrating import Calibration
from flows.planning.strategies import Strategy, base
from flows.planning.trying import Tried

COPIES = 6
"""Of a state that a process holds at most: the network, its gradients, the states before and after, updates."""

SPREAD = 0.1
"""By this share a prediction may be off at least: trials last for seconds, and machines are not always the same."""


@dataclass(frozen=True)
class Size:
    """The work itself: examples of an epoch and of a batch, bytes of a state and of all examples."""

    examples: int
    batch: int
    state: int
    data: int


@dataclass(frozen=True)
class Prediction:
    """What a strategy will take: seconds a round, at best and at worst, and an epoch; bytes of a round and a process.

    `maps` is the share of a round in which partitions are mapped; `refused` says why it cannot be chosen.
    """

    strategy: Strategy
    seconds: float
    fastest: float
    slowest: float
    epoch: float
    maps: float
    stored: int
    sent: int
    memory: int
    refused: str | None = None


def predict(strategy: Strategy, size: Size, measured: Calibration) -> Prediction:
    """What a strategy will take; refused where it was tried in vain, or needs more memory than there is."""
    memory = measured.together.resident + COPIES * size.state // strategy.ranks + size.data
    left = measured.together.resident + measured.together.available
    trial = _trial(strategy, measured)
    if trial is None:
        why = measured.failed.get(strategy.name, "it could not be tried")
        return Prediction(strategy, inf, inf, inf, inf, 0.0, 0, 0, memory, why)
    refused = f"a process needs {memory >> 20} MiB of memory and has {left >> 20}" if memory > left else None
    maps = _maps(strategy, measured)
    seconds = trial.seconds if strategy.is_tried else maps + _besides(strategy, trial, measured)
    fastest, slowest = _range(trial, seconds)
    rounds = size.examples / (strategy.steps * size.batch * strategy.updates)
    moved = 0 if strategy.executor == "inline" else 2 * size.state * strategy.updates
    return Prediction(
        strategy,
        seconds,
        fastest,
        slowest,
        rounds * seconds,
        min(1.0, maps / seconds),
        (1 + strategy.updates) * size.state,
        moved if trial.sent is None else trial.sent,
        memory,
        refused,
    )


def _trial(strategy: Strategy, measured: Calibration) -> Tried | None:
    """The rounds that were tried of a strategy, else those of one step by its executor."""
    if strategy.executor == "inline":
        return measured.inline
    name = strategy.name if strategy.is_tried else base(strategy.executor, measured.workers).name
    return measured.rounds.get(name)


def _maps(strategy: Strategy, measured: Calibration) -> float:
    """Seconds of a round's maps, of which each worker does its own one after the other."""
    if strategy.executor == "inline":
        pace, each = measured.alone[strategy.threads], strategy.partitions
    else:
        pace, each = measured.together, -(-strategy.partitions // measured.workers)
    return each * (pace.start + strategy.steps * pace.step)


def _besides(strategy: Strategy, trial: Tried, measured: Calibration) -> float:
    """What an executor takes for a round besides its maps, by its rounds of one step."""
    one = base(strategy.executor, measured.workers)
    return max(0.0, trial.seconds - _maps(one, measured)) * strategy.partitions / one.partitions


def _range(trial: Tried, seconds: float) -> tuple[float, float]:
    """The least and the most that rounds are likely to take, as those that were tried varied."""
    low, high = trial.fastest / trial.seconds, trial.slowest / trial.seconds
    return seconds * min(1 - SPREAD, low), seconds * max(1 + SPREAD, high)
