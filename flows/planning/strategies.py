"""Ways to distribute a work: what of its configuration each of them changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from flows.config.algorithms import options_of
from flows.config.train import TrainConfig
from flows.planning.workload import Workload

LOCAL_STEPS = (10, 100)
"""So many local steps a round are planned; and those of an epoch."""

SHARED_STEPS = 20
"""Local steps a round of a network that ranks share."""

DECIDED = ("executor", "partitions", "threads", "algorithm", "rounds", "evaluate_every", "quorum")
"""Fields of a configuration that a strategy decides."""

FIXED = ("planned", "order", "speeds", "recombined")
"""Fields that mean nothing for partitions and rounds other than those that they were given for."""


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
        return self.steps == 1 or self.ranks > 1

    @property
    def ranks(self) -> int:
        """How many processes share a network."""
        return int(self.options.get("ranks", 1))

    @property
    def updates(self) -> int:
        """How many updates a round has."""
        return 1 if self.arrives else self.partitions

    def rounds(self, work: Workload) -> float:
        """Rounds of an epoch."""
        if "local_epochs" in self.options:
            return 1.0
        batch = min(work.batch, work.examples / self.partitions)  # a partition has no larger one than all of it
        return work.examples / (self.steps * batch * self.updates)

    def lacks(self, work: Workload) -> list[str]:
        """Options of the work that its algorithm does not take."""
        return sorted(work.options.keys() - options_of(self.algorithm).keys())

    def changes(self, config: TrainConfig, work: Workload) -> dict[str, Any]:
        """What of a configuration is other by this strategy."""
        carried = {name: value for name, value in work.options.items() if name not in self.lacks(work)}
        return {
            "executor": self.executor,
            "partitions": self.partitions,
            "threads": self.threads,
            "algorithm": {"name": self.algorithm, **carried, **self.options},
            "rounds": max(1, ceil(work.epochs * self.rounds(work))),
            "evaluate_every": max(1, round(work.scored * self.rounds(work))),
            "quorum": min(config.quorum, self.partitions),
        }

    def configured(self, config: TrainConfig, work: Workload, **more: Any) -> TrainConfig:
        """The configuration of the work by this strategy, with other fields."""
        kept = config.model_dump(exclude={*DECIDED, *FIXED}, exclude_unset=True)
        return TrainConfig(**kept | self.changes(config, work) | more)


def base(executor: str, partitions: int) -> Strategy:
    """Rounds of one step: what they take besides the step is what an executor takes for a round."""
    return Strategy(f"synchronous, {executor}", executor, partitions, "sync_sgd", 1)


def local(work: Workload, executor: str, partitions: int, steps: int) -> Strategy:
    """Rounds of several steps, by the algorithm by which partitions learn apart."""
    options = {"local_steps": steps}
    return Strategy(f"local {steps}, {executor}", executor, partitions, work.local, steps, 1, options)


def strategies(work: Workload, workers: int, cores: int) -> Iterator[Strategy]:
    """All ways to do a work on so many workers, the plain ones first; `cores` are those of this process."""
    yield from _single(work, cores)
    if workers == 1:
        return
    for executor in ("inline", "graph", "gang"):
        yield base(executor, workers)
    for executor in ("graph", "gang"):
        yield from _local(work, executor, workers)
    yield Strategy("asynchronous", "graph", workers, "async_sgd", 1)
    shared = {"local_steps": min(SHARED_STEPS, work.most_local_steps or SHARED_STEPS), "ranks": workers}
    for name, more in {"split": {}, "hybrid": {"hybrid": True}}.items():
        yield Strategy(name, "gang", 1, "fed_avg", shared["local_steps"], 1, shared | more)


def _single(work: Workload, cores: int) -> Iterator[Strategy]:
    """One process, of one thread and of as many as there are cores."""
    for threads in sorted({1, cores}):
        name = "single" if threads == 1 else f"single, {threads} threads"
        yield Strategy(name, "inline", 1, "fed_avg", work.steps, threads, {"local_epochs": 1})


def _local(work: Workload, executor: str, workers: int) -> Iterator[Strategy]:
    """Local steps of several numbers, up to those of an epoch."""
    own = ceil(ceil(work.examples / workers) / work.batch)
    most = work.most_local_steps or own
    for steps in sorted({min(each, most) for each in (*LOCAL_STEPS, own) if each <= own}):
        strategy = local(work, executor, workers, steps)
        if steps == own:
            strategy = replace(strategy, name=f"local epoch, {executor}", options={"local_epochs": 1})
        yield strategy
