"""The work that is to be distributed: what a configuration asks for, however that will be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.config.algorithms import MODELS, is_own, options_of
from flows.config.resolving import Resolved, deal, resolve
from flows.config.train import TrainConfig
from storage.errors import UsageError
from tasks.when import Asynchronous

AUTO = "auto"
"""The algorithm that stands for the one that is chosen."""

DISTRIBUTING = frozenset({"local_steps", "local_epochs", "most_local_steps"})
"""Options of algorithms that say how work is distributed, and not what it is."""

COUNTING_ROUNDS = ("warmup", "lr_schedule", "outer_lr_schedule")
"""Options that may count rounds, of which strategies have different numbers in an epoch."""


@dataclass(frozen=True)
class Workload:
    """Epochs over so many examples in batches, scored after each `scored`, with a state of so many bytes.

    Where partitions learn apart from each other they do so by the `local` algorithm, for no more than
    `most_local_steps`; `options` are those that its configuration gives, besides such that distribute.
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
    """The work of a configuration, and its values in one partition.

    Raises `UsageError` where the work depends on how it is distributed, or nothing tells how well it is done.
    """
    local, options, batch = _learning(config)
    _check_dealt(config)
    algorithm = MODELS["sync_sgd"].model_validate({"name": "sync_sgd", "batch_size": batch})
    plain = resolve(config.model_copy(update={"algorithm": algorithm, "partitions": 1, "quorum": 1}))
    assert plain.description is not None
    assert plain.objective is not None
    if not plain.description.held_out:
        raise UsageError("plan compares losses on held-out examples, and none are held out; give held_out")
    examples = plain.description.examples
    an_epoch = 1.0 if config.algorithm.name == AUTO else _rounds_of_epoch(config, examples, batch)
    work = Workload(
        examples,
        batch,
        sum(vector.nbytes for vector in plain.objective.initial().params.values()),
        config.rounds / an_epoch,
        (config.evaluate_every or 1) / an_epoch,
        local,
        config.algorithm.options.get("most_local_steps"),
        options,
    )
    return work, plain


def _learning(config: TrainConfig) -> tuple[str, dict[str, Any], int]:
    """By which algorithm partitions learn on their own, with which options, and the size of a batch."""
    name = config.algorithm.name
    if is_own(name):
        raise UsageError(
            "plan chooses among named algorithms, and this one is a function of yours; name one, as fed_avg"
        )
    given = config.algorithm.model_dump(exclude={"name", *DISTRIBUTING}, exclude_unset=True)
    for option in COUNTING_ROUNDS:
        if any(letter.isdigit() for letter in str(given.get(option) or "")):
            raise UsageError(f"{option} {given[option]} counts rounds, which strategies differ in; leave it out")
    batch = config.algorithm.options.get("batch_size")
    if batch is None:
        raise UsageError("batches of whole partitions depend on how many there are; give batch_size")
    return name if "local_steps" in options_of(name) else "fed_avg", {**given, "batch_size": batch}, batch


def _check_dealt(config: TrainConfig) -> None:
    """Raise `UsageError` where how many partitions there are is not to be chosen."""
    partitions = deal(config)
    if partitions.source.partitioned:
        raise UsageError("plan deals examples to as many partitions as fit, and these data give each its own")
    if partitions.split.deal.partitions is not None:
        raise UsageError(f"plan deals examples to as many partitions as fit, and split {config.split} fixes them")


def _rounds_of_epoch(config: TrainConfig, examples: int, batch: float) -> float:
    """How many rounds of a configuration see as many examples as there are."""
    options, when = config.algorithm.options, config.algorithm.over(config.rounds).build().when
    updates = when.buffer if isinstance(when, Asynchronous) else config.partitions
    batch = min(batch, examples / config.partitions)
    if "local_steps" not in options:
        return examples / (batch * updates)
    steps = options["local_steps"]
    return examples / (steps * batch * updates) if steps else 1 / (options["local_epochs"] or 1)
