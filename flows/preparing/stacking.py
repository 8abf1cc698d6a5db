"""How many partitions are stacked: found by a trial once, and recorded as the algorithm's option."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flows.config.resolving import Resolved, resolve, work_of
from flows.config.train import TrainConfig
from flows.recording import recorded_config
from flows.reporting.listening import notice
from storage.errors import ModelError, UsageError
from tasks.executors.base import Executor
from tasks.numerics import fingerprint
from tasks.rounds.job import Work
from tasks.rounds.plan import RoundPlan
from tasks.rounds.trial import block_seconds

AUTO = "auto"
GROUPS = (4, 2, 1)
"""Of so many groups of partitions a worker's block is to be."""

MULTIPLE = 8
"""Of which the numbers are multiples, so that few vectors are cut."""

BYTES = 1 << 28
"""What the stacked networks, their gradients and what they are made of may take."""

GAIN = 1.25
"""How many times as fast the maps must become."""


def with_stack(resolved: Resolved, executor: Executor) -> Resolved:
    """The same with the number that ``auto`` stands for: the recorded one of a run, else by a trial."""
    if resolved.config.algorithm.options.get("stacked") != AUTO:
        return resolved
    number = _recorded(resolved.config) or _tried(resolved, executor)
    return resolve(_with(resolved.config, number))


def _with(config: TrainConfig, number: int) -> TrainConfig:
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"stacked": number})})


def _recorded(config: TrainConfig) -> int | None:
    """The number of the run that goes on, None where it is new."""
    recorded = recorded_config(config)
    return None if recorded is None else recorded["algorithm"].get("stacked", 1)


def _tried(resolved: Resolved, executor: Executor) -> int:
    """The number with which a worker has mapped its partitions first; 1 where that gains little."""
    work, _ = work_of(resolved, executor)
    plan = RoundPlan.over(resolved.config.partitions, len(executor.each(fingerprint)))
    share = len(plan.span(0))
    works = [work, *(one for number in _numbers(work, share) if (one := _stacking(resolved, executor, number)))]
    (seconds,) = executor.gather(partial(_block_seconds, works, share), range(1))
    numbers = [one.algorithm.map.stack for one in works]
    best = min(range(len(works)), key=seconds.__getitem__)
    number = numbers[best] if seconds[best] * GAIN < seconds[0] else 1
    told = ", ".join(f"{n} {1e3 * s / share:.2g}" for n, s in zip(numbers, seconds, strict=True))
    notice(f"partitions to stack by a trial, ms a partition: {told}; stacked {number}")
    return number


def _block_seconds(works: Sequence[Work], share: int, partition: int) -> list[float]:
    return block_seconds(works, share)


def _numbers(work: Work, share: int) -> list[int]:
    """The numbers to try, in order."""
    state = work.objective.initial()
    size = 4 * sum(vector.nbytes for vector in state.params.values())
    wanted = {-(-share // (groups * MULTIPLE)) * MULTIPLE for groups in GROUPS}
    return [number for number in sorted(wanted) if number * size <= BYTES and share > 1]


def _stacking(resolved: Resolved, executor: Executor, number: int) -> Work | None:
    """The work with so many partitions stacked, None where that cannot be."""
    try:
        return work_of(resolve(_with(resolved.config, number)), executor)[0]
    except (UsageError, ModelError):
        return None
