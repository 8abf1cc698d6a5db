"""Which strategy is chosen, and why."""

from __future__ import annotations

from collections.abc import Sequence

from flows.planning.predicting import Prediction
from storage.errors import ClusterError

GAIN = 1.1
"""One process, and of such the one with fewer threads, may take so many times as long: less can go wrong in it."""

CLOSE, CLOSE_SECONDS = 1.3, 2.0
"""Strategies that take no more than so many times as long as the best are tried, if their rounds are so short."""


def choose(predictions: Sequence[Prediction]) -> Prediction:
    """One process where that takes about as little as anything, else what takes the least time for an epoch.

    Raises `ClusterError` where nothing can do the work.
    """
    least = _least(predictions)
    near = [each for each in predictions if each.refused is None and each.epoch <= least * GAIN]
    return next((each for each in near if each.strategy.executor == "inline"), min(near, key=_epoch))


def _epoch(prediction: Prediction) -> float:
    return prediction.epoch


def close(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those among which predictions alone do not decide, and whose rounds are short enough to be tried."""
    least = _least(predictions)
    near = [each for each in predictions if each.refused is None and each.epoch <= least * CLOSE]
    return [each for each in near if each.seconds <= CLOSE_SECONDS] if len(near) > 1 else []


def _least(predictions: Sequence[Prediction]) -> float:
    possible = [each.epoch for each in predictions if each.refused is None]
    if not possible:
        raise ClusterError(f"no strategy can do this work here: {predictions[0].refused}")
    return min(possible)


def reason(chosen: Prediction, predictions: Sequence[Prediction]) -> str:
    """Why a strategy was chosen, in a sentence: beside the best of the other kind."""
    alone = chosen.strategy.executor == "inline"
    others = [
        each for each in predictions if each.refused is None and (each.strategy.executor == "inline") != alone
    ]
    told = f"{chosen.strategy.name} takes {chosen.epoch:.3g} s an epoch, bound by {chosen.bound}"
    if not others:
        return f"{told}; there is nothing else to do the work with"
    other = min(others, key=_epoch)
    kind = "that is distributed" if alone else "in one process"
    return (
        f"{told}; the best {kind} is {other.strategy.name}, {other.epoch / chosen.epoch:.2f} times as long, "
        f"bound by {other.bound}"
    )
