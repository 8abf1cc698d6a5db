"""Opens a stored run's rounds again: to replay, recombine, score or compute them, all in the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import Field

from roundweave.flows.config.base import EachOwn, NamedOrOwn
from roundweave.flows.config.recorded import recorded_experiment
from roundweave.flows.config.train import Location, TrainConfig
from roundweave.flows.planning.describing import Described, describe, describe_here
from roundweave.flows.planning.plan import Plan, plan_rounds
from roundweave.flows.serving.ahead import started
from roundweave.storage.errors import DataError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.data.partitions import forget_examples
from roundweave.tasks.data.splits.placement import ANYWHERE
from roundweave.tasks.data.splits.split import Asked
from roundweave.tasks.executors.base import Executor


class OfRun(Location):
    """The run whose rounds are computed again, and where; nothing of its recorded execution is used."""

    run: str = Field(description="name or address of the run")
    data: NamedOrOwn | EachOwn | None = Field(
        default=None, description="present location of the same examples; default: as recorded"
    )
    trust: bool = Field(default=False, description="execute code that is stored with a run outside the root")

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the recorded configuration that are others now."""
        return {} if self.data is None else {"data": self.data}


@contextmanager
def examples_wanted() -> Iterator[None]:
    """Add to a `DataError` in this context the hint that --data says where the run's examples lie now."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; if the run's examples have moved, name their place by --data") from error


def recorded_training(run: StoredRun, config: OfRun, **changes: Any) -> TrainConfig:
    """Return the configuration of a run's experiment, with changes, and of where it is computed again.

    Raises `UsageError` for a merge, and for foreign code that needs `trust`.
    """
    experiment = recorded_experiment(run, config.root, config.trust, config.changes)
    location = {name: getattr(config, name) for name in Location.model_fields}
    return TrainConfig(**experiment | location | {"rounds": max(1, run.rounds)} | changes)


def plan_again(run: StoredRun, config: OfRun, **changes: Any) -> Plan:
    """Return the plan of a stored run's rounds, as recorded but for changes. Raises `RoundweaveError`."""
    training = recorded_training(run, config, **changes)
    forget_examples()  # that may have been read before their files changed
    plan = plan_rounds(training, run)
    if isinstance(config.data, tuple):  # each partition's data are named, and read here
        plan = replace(plan, placement=ANYWHERE, partitions=replace(plan.partitions, placement=ANYWHERE))
    sampler = plan.partitions.sampler
    if not isinstance(sampler, Asked):
        return plan
    before = training.recombined.before if training.recombined else 0
    commits = (run.round(number).commit for number in run.committed)
    rounds = {before + each.round: tuple(sorted({*each.updates, *each.absent})) for each in commits}
    return replace(plan, partitions=replace(plan.partitions, sampler=replace(sampler, rounds=rounds)))


@contextmanager
def described_again(plan: Plan, config: OfRun) -> Iterator[tuple[Described, Executor]]:
    """The rounds of a plan with what their examples decide, and an executor that only reads its store."""
    here = describe_here(plan)
    assert plan.run is not None
    with started(config, plan.placement, full_address(plan.run.address)) as executor:
        yield here or describe(plan, executor.gather), executor
