"""Which strategy is chosen, and why."""

from __future__ import annotations

from collections.abc import Sequence

from flows.planning.predicting import Prediction
from storage.errors import ClusterError

GAIN = 1.05
"""So many times as long may a strategy take that stands before another: the first ones are simpler."""


def choose(predictions: Sequence[Prediction]) -> Prediction:
    """The first strategy whose epoch takes about as little as that of any; raises `ClusterError` for none."""
    possible = [each for each in predictions if each.refused is None]
    if not possible:
        raise ClusterError(f"no strategy can do this work here: {predictions[0].refused}")
    least = min(each.epoch for each in possible)
    return next(each for each in possible if each.epoch <= least * GAIN)


def reason(chosen: Prediction, predictions: Sequence[Prediction]) -> str:
    """Why a strategy was chosen, in a sentence: beside the best of the other kind."""
    alone = chosen.strategy.executor == "inline"
    others = [
        each for each in predictions if each.refused is None and (each.strategy.executor == "inline") != alone
    ]
    told = f"{chosen.strategy.name} takes {_seconds(chosen.epoch)} an epoch"
    if not others:
        return f"{told}, and there is nothing else to do the work with"
    other = min(others, key=lambda each: each.epoch)
    ratio = other.epoch / chosen.epoch
    share = 1 - (other if alone else chosen).maps
    of = f"{_seconds(other.epoch)} for {other.strategy.name}, the best {'that is distributed' if alone else 'here'}"
    why = f"of whose rounds {share:.0%} lie between maps" if alone else f"{ratio:.1f} times as long"
    return f"{told}; {of}, {why}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
