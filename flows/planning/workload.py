"""The amount of work in a configuration, independent of how it will be distributed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roundweave.flows.config.algorithms import Named, is_own_algorithm, option_fields
from roundweave.flows.config.resolving import Resolved, deal, resolve_work
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.table import AUTO
from roundweave.tasks.data.partitions import forget_examples

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


def workload(config: TrainConfig) -> tuple[Workload, Resolved]:
    """The work of a configuration, and the configuration resolved with one partition.

    Raises `UsageError` if the work depends on how it is distributed, or if no examples are held out to compare
    strategies.
    """
    name, batch = str(config.algorithm.name), _checked_batch(config)
    given = config.algorithm.model_dump(exclude={"name", *DISTRIBUTING}, exclude_unset=True)
    algorithm = Named.model_validate({"name": "sync_sgd", "batch_size": batch})
    forget_examples()  # of an earlier run or plan; their files may have changed
    plain = resolve_work(config.model_copy(update={"algorithm": algorithm, "partitions": 1, "quorum": 1}))
    assert plain.description is not None
    assert plain.objective is not None
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
            raise UsageError(f"{option} {options[option]} counts rounds, which strategies differ in; leave it out")
    batch: int | None = options.get("batch_size")
    if batch is None:
        raise UsageError("batches of whole partitions depend on how many there are; give batch_size")
    if options.get("accumulate", 1) > 1:
        raise UsageError("plan compares steps of one batch each; leave accumulate out")
    if is_own_optimizer(options.get("optimizer", "")):
        raise UsageError("plan tries other learning rates, and a function of yours sets them; name an optimizer")
    if config.partition_options:
        raise UsageError("plan deals examples to as many partitions as fit; leave partition_options out")
    dealt = deal(config)
    if dealt.source.partitioned:
        raise UsageError("plan deals examples to as many partitions as fit, and these data give each its own")
    if dealt.split.deal.partitions is not None:
        raise UsageError(f"plan deals examples to as many partitions as fit, and split {config.split} fixes them")
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
