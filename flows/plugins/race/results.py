"""What a race showed of each strategy, as the configuration that it chose records it."""

from __future__ import annotations

from pydantic import Field

from roundweave.flows.config.base import Config


class Raced(Config):
    """A strategy's result in a race: its held-out loss after `trained` seconds, which were so many `rounds`.

    `seconds` is the time of a round and `epoch` that of an epoch. `behind` says how many times as long the
    strategy took as the best one to come 95 % of the way from the loss at the start to the lowest loss of the
    race; it is None for a strategy that was out before it came so far, or whose loss did not fall.
    """

    loss: float
    accuracy: float | None = None
    trained: float
    rounds: float
    seconds: float
    epoch: float
    behind: float | None = None


class Planned(Config):
    """How a run's strategy was chosen: the results of the race by strategy, and why others were refused."""

    strategy: str
    workers: int
    rounds_of_epoch: float
    raced: dict[str, Raced]
    refused: dict[str, str] = Field(default_factory=dict)
    reason: str
