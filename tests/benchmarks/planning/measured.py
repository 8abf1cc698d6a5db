"""Strategies of a plan, done as it says for some seconds each."""

from __future__ import annotations

import statistics
from math import ceil

import roundweave as rw
from flows.planning.outcome import outcome
from flows.planning.plan import Plan
from flows.planning.predicting import Prediction

LEAST_ROUNDS = 4
"""So many rounds are done at least; the first is not counted."""


def measured(plan: Plan, prediction: Prediction, seconds: float, turn: int = 1) -> float:
    """Seconds of an epoch, of rounds done for so many seconds with all that a run does; a turn is a run."""
    rounds = max(LEAST_ROUNDS, ceil(seconds / prediction.seconds))
    name = f"{prediction.strategy.name.replace(', ', '-').replace(' ', '-')}-{turn}"
    config = plan.by(prediction)
    run = rw.train(config.model_copy(update={"rounds": rounds, "name": name, "root": plan.config.root}))
    done = outcome(run)
    assert done is not None
    assert done.seconds is not None
    return prediction.strategy.rounds(plan.work) * done.seconds


def ratios(pairs: list[tuple[float, float]]) -> str:
    """The median, the least and the largest of predicted over measured."""
    shares = [predicted / taken for predicted, taken in pairs]
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
