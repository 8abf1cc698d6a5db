"""What a run has to compute, however it is distributed, and the strategies to do it that race in a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from roundweave.flows.config.algorithms import Named, is_own_algorithm, option_fields
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.completing import deal
from roundweave.flows.planning.describing import Described, describe
from roundweave.flows.planning.plan import plan_rounds
from roundweave.flows.stored import open_run
from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.table import AUTO
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.data.partitions import forget_examples
from roundweave.tasks.executors.base import EXECUTORS

DISTRIBUTING = frozenset({"local_steps", "local_epochs", "most_local_steps"})
"""Options of algorithms that say how work is distributed, and not what it is."""

COUNTING_ROUNDS = ("warmup", "lr_schedule", "outer_lr_schedule")
"""Options that may count rounds, whose number in an epoch differs between strategies."""


@dataclass(frozen=True)
class Workload:
    """The work: `epochs` over `examples` in batches of `batch`, with a `state` of so many bytes.

    It is scored every `scored` epochs. `local` is the algorithm for strategies with local steps, of which there
    may be at most `most_local_steps`. `options` are the given ones, except those that say how work is distributed.
    """

    examples: int
    batch: int
    state: int
    epochs: float
    scored: float
    local: str
    most_local_steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def workload(config: TrainConfig) -> tuple[Workload, Described]:
    """The work of a configuration, and the same with one partition.

    Raises `UsageError` if the work depends on how it is distributed, or if no examples are held out to compare
    strategies.
    """
    name, batch = str(config.algorithm.name), _checked_batch(config)
    given = config.algorithm.model_dump(exclude={"name", *DISTRIBUTING}, exclude_unset=True)
    algorithm = Named.model_validate({"name": "sync_sgd", "batch_size": batch})
    forget_examples()  # of an earlier run or plan; their files may have changed
    one = {"quorum": 1, **shared(1, False)}
    alone = config.model_copy(update={"algorithm": algorithm, **one})
    filled = plan_rounds(alone, opened=open_run).filled if name == AUTO else {}
    if option := filled.get("sampler") or filled.get("placement"):
        raise UsageError(f"auto chooses the number of partitions, and has no {option}; name an algorithm")
    plain = describe(plan_rounds(alone.model_copy(update={"partitions": 1}), opened=open_run), gather_here)
    if not plain.description.held_out:
        raise UsageError("plan compares losses on held-out examples, and none are held out; give held_out")
    examples = plain.description.examples
    an_epoch = 1.0 if name == AUTO else _configured_rounds(config, examples, batch)
    work = Workload(
        examples,
        batch,
        state=sum(vector.nbytes for vector in plain.objective.initial().params.values()),
        epochs=config.rounds / an_epoch,
        scored=(config.evaluate_every or 1) / an_epoch,
        local=name if "local_steps" in option_fields(name) else "fed_avg",
        most_local_steps=config.algorithm.options.get("most_local_steps"),
        options={**given, "batch_size": batch},
    )
    return work, plain


def _checked_batch(config: TrainConfig) -> int:
    """The batch size; raises `UsageError` for work that depends on how it is distributed."""
    if is_own_algorithm(config.algorithm.name):
        raise UsageError(
            "plan chooses among named algorithms, and this one is a function of yours; name one, as fed_avg"
        )
    options = config.algorithm.options
    for option in COUNTING_ROUNDS:
        if any(letter.isdigit() for letter in str(options.get(option) or "")):
            raise UsageError(f"{option} {options[option]} counts rounds, which strategies change; leave it out")
    batch: int | None = options.get("batch_size")
    if batch is None:
        raise UsageError("batches of whole partitions depend on how many there are; give batch_size")
    if options.get("accumulate", 1) > 1:
        raise UsageError("plan compares steps of one batch each; leave accumulate out")
    if is_own_optimizer(options.get("optimizer", "")):
        raise UsageError("plan tries other learning rates, and a function of yours sets them; name an optimizer")
    if config.partition_options:
        raise UsageError("plan chooses the number of partitions; leave partition_options out")
    dealt = deal(config)
    if dealt.source.partitioned:
        raise UsageError("plan chooses the number of partitions, and these data give each its own")
    if dealt.split.deal.partitions is not None:
        raise UsageError(f"plan chooses the number of partitions, and split {config.split} fixes it")
    return batch


def rounds_of_epoch(examples: int, batch: int, partitions: int, steps: int = 1, updates: int = 0) -> float:
    """The number of rounds that see as many examples as there are.

    A round has `updates` updates, by default one of each partition, each of `steps` steps. A partition with fewer
    examples than a batch has batches of all of them.
    """
    return examples / (min(batch, examples / partitions) * steps * (updates or partitions))


def _configured_rounds(config: TrainConfig, examples: int, batch: int) -> float:
    """The rounds of an epoch if the configuration is trained as it is."""
    options, when = config.algorithm.options, config.algorithm.recorded(config.rounds).build().when
    steps = options.get("local_steps", 1)
    if not steps:
        return 1 / (options["local_epochs"] or 1)
    return rounds_of_epoch(examples, batch, config.partitions, steps, when.updates(config.partitions))


BATCHES = (128, 256)
"""The larger batch sizes with which one process is tried."""

FEWEST_STEPS = 10
"""A larger batch is tried if an epoch has at least this many steps with it."""

LOCAL_STEPS = (10, 100)
"""The numbers of local steps in a round that are tried, besides those of an epoch."""

SHARED_STEPS = 20
"""The local steps of a round if ranks share a network."""

SHARED_BYTES = 4_000_000
"""The smallest state that ranks share: with 13 MB two ranks take 0.8 of the time (docs/results.md)."""

FIXED = ("planned", "order", "speeds", "recombined")
"""Fields that mean nothing for other partitions and rounds than those that they were given for."""


@dataclass(frozen=True)
class Strategy:
    """A way to train: an executor, a number of partitions, and an algorithm with its options.

    In a round each partition takes `steps` local steps on batches of `batch` examples.
    """

    name: str
    executor: str
    partitions: int
    algorithm: str
    steps: int
    batch: int
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    hybrid: bool = False

    def rounds(self, work: Workload) -> float:
        """The number of rounds in an epoch."""
        if "local_epochs" in self.options:
            return 1.0
        updates = 1 if self.algorithm == "async_sgd" else self.partitions  # a server's round is one push
        return rounds_of_epoch(work.examples, self.batch, self.partitions, self.steps, updates)

    @property
    def distributed(self) -> bool:
        """Whether it needs a cluster."""
        return EXECUTORS[self.executor].distributed

    def shortened(self, steps: int) -> Strategy:
        """This strategy in rounds of so many local steps."""
        options = {name: value for name, value in self.options.items() if name != "local_epochs"}
        name = f"{self.name} in rounds of {steps}"
        return replace(self, name=name, steps=steps, options=options | {"local_steps": steps})

    def changes(self, config: TrainConfig, work: Workload) -> dict[str, Any]:
        """The fields of a configuration that this strategy decides."""
        options = {**work.options, **self.options}
        if self.batch > work.batch:
            lr = options.get("lr", option_fields(self.algorithm)["lr"].default)
            options |= larger_batch(self.batch, work.batch, lr)
        return {
            "executor": self.executor,
            "partitions": self.partitions,
            "threads": self.threads,
            "algorithm": {"name": self.algorithm, **options},
            "rounds": max(1, ceil(work.epochs * self.rounds(work))),
            "evaluate_every": max(1, round(work.scored * self.rounds(work))),
            "quorum": min(config.quorum, self.partitions),
            **shared(self.ranks, self.hybrid),
        }

    def configured(self, config: TrainConfig, work: Workload, **more: Any) -> TrainConfig:
        """The configuration by this strategy, with `more` fields; `UsageError` where it cannot do the work."""
        kept = config.model_dump(exclude={*FIXED}, exclude_unset=True)
        return TrainConfig(**kept | self.changes(config, work) | more)


def shared(ranks: int, hybrid: bool) -> dict[str, Any]:
    """The options by which ranks share a network; none where no plugin has these."""
    options = {"ranks": ranks, "hybrid": hybrid, **({} if ranks > 1 else {"units": ()})}
    return options if options.keys() <= TrainConfig.model_fields.keys() else {}


def larger_batch(batch: int, own: int, lr: float) -> dict[str, Any]:
    """Options for a larger batch than the work's own; the learning rate grows by the same factor.

    Goyal et al. 2017, *Accurate, large minibatch SGD*, section 2.1.
    """
    return {"batch_size": batch, "lr": batch / own * lr}


def strategies(work: Workload, workers: int, cores: int) -> Iterator[Strategy]:
    """All strategies for a work on so many workers, the simplest first; `cores` is the number of this process."""
    for threads in sorted({1, cores}):
        yield from _single(work, threads)
    if workers == 1:
        return
    yield Strategy("synchronous", "auto", workers, "sync_sgd", 1, work.batch)
    yield from _local(work, workers)
    yield Strategy("asynchronous", "graph", workers, "async_sgd", 1, work.batch)
    if work.state < SHARED_BYTES or not shared(workers, False):
        return
    steps = min(SHARED_STEPS, work.most_local_steps or SHARED_STEPS)
    for name, hybrid in {"split": False, "hybrid": True}.items():
        yield Strategy(name, "ranks", 1, "fed_avg", steps, work.batch, 1, {"local_steps": steps}, workers, hybrid)


def _single(work: Workload, threads: int) -> Iterator[Strategy]:
    """One process of so many threads, with the work's own batch and with larger ones; a round is an epoch."""
    larger = [size for size in BATCHES if work.batch < size <= work.examples / FEWEST_STEPS]
    for batch in (work.batch, *larger):
        name = f"single, batch {batch}" if batch > work.batch else "single"
        name = f"{name}, {threads} threads" if threads > 1 else name
        steps = ceil(work.examples / batch)
        yield Strategy(name, "inline", 1, "fed_avg", steps, batch, threads, {"local_epochs": 1})


def _local(work: Workload, workers: int) -> Iterator[Strategy]:
    """Partitions that learn apart, for several numbers of local steps, up to those of an epoch."""
    own = ceil(ceil(work.examples / workers) / work.batch)
    most = work.most_local_steps or own
    for steps in sorted({min(each, most) for each in (*LOCAL_STEPS, own) if each <= own}):
        whole = steps == own
        options = {"local_epochs": 1} if whole else {"local_steps": steps}
        name = "local epoch" if whole else f"local {steps}"
        yield Strategy(name, "auto", workers, work.local, steps, work.batch, 1, options)
