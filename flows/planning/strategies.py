"""Ways to distribute the work of a configuration: what of it each of them changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.config.train import TrainConfig

AUTO = "auto"
"""The algorithm that stands for the one that is chosen."""

LOCAL_STEPS = (10, 100)
"""So many local steps a round are tried; and those of an epoch."""

SHARED_STEPS = 20
"""Local steps a round of a network that ranks share."""

CARRIED = ("lr", "batch_size", "momentum", "nesterov", "lr_schedule", "warmup")
"""Options that mean the same in all strategies."""


@dataclass(frozen=True)
class Strategy:
    """A way to distribute work: an executor, over so many partitions, and an algorithm with options.

    `steps` are those of each partition in a round.
    """

    name: str
    executor: str
    partitions: int
    algorithm: str
    steps: int
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arrives(self) -> bool:
        """Whether its rounds are arrivals at a server."""
        return self.algorithm == "async_sgd"

    @property
    def is_tried(self) -> bool:
        """Whether its rounds are short, and so are tried; those of others are predicted from what was tried."""
        return self.executor != "inline" and (self.algorithm != "fed_avg" or self.ranks > 1)

    @property
    def ranks(self) -> int:
        """How many processes share a network."""
        return int(self.options.get("ranks", 1))

    @property
    def updates(self) -> int:
        """How many updates a round has."""
        return 1 if self.arrives else self.partitions

    def changes(self, config: TrainConfig) -> dict[str, Any]:
        """What of a configuration is other by this strategy."""
        given = {"batch_size": batch_size(config), **config.algorithm.model_dump(exclude_unset=True)}
        carried = {name: given[name] for name in CARRIED if name in given}
        return {
            "executor": self.executor,
            "partitions": self.partitions,
            "threads": self.threads,
            "algorithm": {"name": self.algorithm, **carried, **self.options},
        }

    def configured(self, config: TrainConfig, **more: Any) -> TrainConfig:
        """The configuration by this strategy, with other fields."""
        kept = config.model_dump(exclude={"algorithm"}, exclude_unset=True)
        return TrainConfig(**kept | self.changes(config) | more)


def base(executor: str, workers: int) -> Strategy:
    """Rounds of one step: what they take besides the step is what an executor takes for a round."""
    partitions = 1 if executor == "inline" else workers
    return Strategy(f"synchronous, {executor}", executor, partitions, "sync_sgd", 1)


def batch_size(config: TrainConfig) -> int:
    """Examples a step, of each partition."""
    return config.algorithm.options.get("batch_size") or 32


def strategies(config: TrainConfig, workers: int, cores: int, examples: int) -> Iterator[Strategy]:
    """All ways to do the work on so many workers, the plain ones first; `cores` are those of this process."""
    size = batch_size(config)
    epoch = -(-examples // size)
    for threads in sorted({1, cores}):
        name = "single" if threads == 1 else f"single, {threads} threads"
        yield Strategy(name, "inline", 1, "fed_avg", epoch, threads, {"local_epochs": 1})
    for executor in ("inline", "graph", "gang"):
        if workers > 1:
            yield Strategy(f"synchronous, {executor}", executor, workers, "sync_sgd", 1)
    if workers == 1:
        return
    share = -(-examples // workers)
    own = -(-share // size)
    for executor in ("graph", "gang"):
        for steps in (*(each for each in LOCAL_STEPS if each < own), own):
            every = "epoch" if steps == own else steps
            options = {"local_epochs": 1} if steps == own else {"local_steps": steps}
            yield Strategy(f"local {every}, {executor}", executor, workers, "fed_avg", steps, 1, options)
    yield Strategy("asynchronous", "graph", workers, "async_sgd", 1)
    shared = {"local_steps": SHARED_STEPS, "ranks": workers}
    yield Strategy("split", "gang", 1, "fed_avg", SHARED_STEPS, 1, shared)
    yield Strategy("hybrid", "gang", 1, "fed_avg", SHARED_STEPS, 1, {**shared, "hybrid": True})
