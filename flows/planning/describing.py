"""What the examples of a plan decide: their description, the network that was tried on them, and the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.plan import Plan
from roundweave.storage.errors import DataError, ModelError, UsageError, nearest
from roundweave.storage.rounds.commits import ranking
from roundweave.tasks.compute.fitting import Fitting
from roundweave.tasks.data.description import CallEach, Description, check_numbered, combine, gather_here
from roundweave.tasks.data.meaning import NO_NAMES, agree
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.executors.base import EXECUTORS
from roundweave.tasks.networks.objective import LAYOUTS, ModelSpec, Objective
from roundweave.tasks.networks.sizes import MOST_BYTES, TooLarge, at_most
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.rounds.job import Work


@dataclass(frozen=True)
class Described:
    """A plan together with what its examples decide. It is known once the examples were described where they lie.

    `work` is the work of the run's rounds. It is the same on any machine, and for new, resumed and replayed runs.
    """

    plan: Plan
    description: Description
    work: Work

    @property
    def objective(self) -> Objective:
        """The network, as it was tried, with its loss and scores."""
        return self.work.objective

    @property
    def scores(self) -> list[str]:
        """The names of all numbers that a scored round has."""
        prefixes = ["", *(prefix for scorer in self.work.scorers for prefix in scorer.adds)]
        return [f"{prefix}{name}" for prefix in prefixes for name in self.objective.judges]

    @property
    def partitions(self) -> Partitions:
        """The partitions, with the digests of their examples."""
        return self.work.partitions

    def on(self, each: Callable[[Callable[[], str]], Mapping[str, str]]) -> Described:
        """Return the same value, computed in an executor's processes. `each` calls a function in each process."""
        mapper = self.work.mapper.on(each)
        config = self.plan.config.model_copy(update=mapper.recorded)
        return Described(replace(self.plan, config=config), self.description, replace(self.work, mapper=mapper))


def describe_here(plan: Plan) -> Described | None:
    """Describe a plan's examples in this process, before other processes start. Raises `RoundweaveError`.

    Returns None if only the mapping processes can: each partition is loaded where it is mapped, or the network is
    too large.
    """
    if plan.partitions.source.partitioned:
        return None
    with suppress(TooLarge), at_most(MOST_BYTES) if EXECUTORS[plan.config.executor].distributed else nullcontext():
        return describe(plan, gather_here)
    return None


def describe(plan: Plan, gather: CallEach) -> Described:
    """Describe a plan's examples. `gather` calls a function with numbers of partitions, where they lie.

    The examples of a new run are compared with those of its parent. Raises `RoundweaveError` for mistakes in the
    data or in the network, and the errors of the plan's checks.
    """
    config, algorithm, start = plan.config, plan.algorithm, plan.start
    partitions, description, sizes = _describe_examples(plan, gather)
    fitting = Fitting(algorithm, plan.mapper, config.threads, may_own_loss(config), sizes, config.code)
    wanted = objective_for(config, description)
    ((objective, algorithm, layout),) = gather(partial(fitting, wanted, partitions, description), range(1))
    LAYOUTS[objective.model] = layout
    scorers = plan.scorers[:1]
    if not description.columns.refusals:  # a refused run is rejected anyway, and may not fit what follows
        if start and plan.new:
            start.check(objective)
        scorers = tuple(each.described(objective, partitions, description, gather) for each in plan.scorers)
        beside = {name: fact for each in scorers for name, fact in each.recorded.items()}
        description = replace(description, beside=beside)
    mapper = plan.mapper.bound(objective, partitions)
    decided = (algorithm, partitions, config.seed, config.threads, mapper, config.quorum)
    before = config.recombined.before if config.recombined else 0
    how: dict[str, Any] = {"mixing": plan.mixing, "schedule": plan.schedule, "scorers": scorers}
    work = Work(objective, *decided, code=config.code, before=before, **how)
    described = Described(plan, description, work)
    for check in (_check_names, _check_scores, *plan.checks) if not description.columns.refusals else ():
        check(described)
    return described


def _describe_examples(plan: Plan, gather: CallEach) -> tuple[Partitions, Description, tuple[int, ...]]:
    """Return the partitions with the digests of their examples, one description of all, and their known sizes.

    Raises `DataError` if too few partitions can be read, and if names differ from those of the parent run.
    """
    config, partitions, start = plan.config, plan.partitions, plan.start
    each = partitions.source.partitioned
    partitions, descriptions = partitions.described_by(gather, plan.placement.told if plan.new else 0)
    failed = {number: found.unreadable for number, found in enumerate(descriptions) if found.unreadable}
    if failed and len(descriptions) - len(failed) < config.quorum:
        number, reason = next(iter(failed.items()))
        raise DataError(f"{partitions.called(number)}: {reason}; quorum needs {config.quorum} readable")
    padded = partitions.loading.collate is not None
    description = combine(descriptions, partitions.called, padded=padded)
    for plugin in plan.plugins if plan.new else ():
        description = plugin.described(plan, description)
    if start and start.meaning != NO_NAMES and not description.columns.refusals:
        agree({start.reference: start.meaning, "the data": description.meaning})
    digests = tuple(part.digest for part in descriptions)
    files = tuple(description.files.items())
    partitions = replace(partitions, digests=digests, shared=bool(description.shared), files=files)
    if each and partitions.sampler and partitions.sampler.by_size:
        partitions = replace(partitions, counts=tuple(gather(partitions.size, range(config.partitions))))
    return partitions, description, tuple(part.examples for part in descriptions) if each else ()


def _check_names(described: Described) -> None:
    """Raise `ModelError` for a score whose name a scorer derives from another score."""
    scores = described.objective.judges
    prefixes = {prefix for each in described.work.scorers for prefix in (each.prefix, *each.adds) if prefix}
    if twice := scores.keys() & {f"{prefix}{name}" for prefix in prefixes for name in scores}:
        raise ModelError(f"the name {min(twice)!r} of a score is taken by another number; rename it")


def _check_scores(described: Described) -> None:
    """Raise `UsageError` if an option needs scores and none are computed, or if `best` is none of the scores."""
    plan, best = described.plan, described.plan.config.best
    given = next(iter(plan.needs_scores), "best" if best else None)
    if given and not described.description.held_out:
        raise UsageError(f"{given} needs scores, and no examples are held out; give held_out, or leave it out")
    if best and (score := ranking(best)[0]) not in (every := described.scores):
        hint = nearest(score, every, f"there are {', '.join(every)}")
        raise UsageError(f"best = {best}: no score {score!r} is computed; {hint}")


def objective_for(config: TrainConfig, description: Description) -> Objective:
    """Return the network and loss of a configuration for examples of this description.

    The default loss is cross entropy for labels. It is the squared error otherwise, and for the model `linear`. A
    network that takes labels has its own loss instead; see `may_own_loss`.
    """
    fitting = "cross_entropy" if description.labels and config.model != "linear" else "mse"
    loss = fitting if config.loss is None else config.loss
    outputs = description.classes if description.labels and loss != "mse" else prod(description.targets)
    if loss == "cross_entropy" and isinstance(config.model, str):
        check_numbered(outputs, description.distinct)
    options = json.dumps(config.model_options, sort_keys=True)
    seed = config.seed if config.init_seed is None else config.init_seed
    model = ModelSpec(config.model, description.inputs, outputs, config.dtype, seed, options)
    return Objective(model, loss, config.scores)


def may_own_loss(config: TrainConfig) -> bool:
    """Tell whether a configuration's network computes its loss itself if it takes labels."""
    return config.loss is None and isinstance(config.model, Code)
