"""From the configuration of a replay to its plan: what is refused is refused before any process is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.config.recorded import recorded_config
from flows.config.resolving import Resolved, resolve
from flows.evidence.replay.config import ReplayConfig
from flows.evidence.replay.key import code_differences
from storage.errors import DataError, RoundMissing, UsageError
from storage.runs.run import Run, open_run
from tasks.data.partitions import forget_examples


@dataclass(frozen=True)
class ReplayPlan:
    """A run, the rounds of it that are replayed, what its record stands for, and what of its code has changed."""

    config: ReplayConfig
    stored: Run
    rounds: tuple[int, ...]
    resolved: Resolved
    code: str


def plan_replay(config: ReplayConfig) -> ReplayPlan:
    """What is replayed and with what; raises what is wrong with the run, its rounds, its code or its data."""
    stored = open_run(config.run, config.root)
    if stored.algorithm == "merge":
        raise UsageError(f"{stored.name} is a merge, which has no maps to replay; replay the runs that it is of")
    rounds = _chosen(config, stored)
    changes = {} if config.data is None else {"data": config.data}
    recorded = recorded_config(stored, config.root, config.trust, changes)
    forget_examples()
    with examples_wanted():
        return ReplayPlan(config, stored, rounds, resolve(recorded), code_differences(recorded))


@contextmanager
def examples_wanted() -> Iterator[None]:
    """Within, examples are looked for where they were; where they are not, it is said what to do."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; where the run's examples lie elsewhere now, say so with --data") from error


def _chosen(config: ReplayConfig, stored: Run) -> tuple[int, ...]:
    """The rounds of a choice, ascending; raises `RoundMissing`, and `UsageError` for the initial state."""
    if stored.done == 0:
        raise RoundMissing(f"{stored.name} has no round to replay yet, only its initial state")
    if config.sample is None and config.rounds == "last":
        return (stored.done,)
    if isinstance(config.rounds, tuple):
        numbers = sorted({stored.round(number).number for number in config.rounds})
        if 0 in numbers:
            raise UsageError(f"round 0 is the initial state, which no maps made; replay 1 to {stored.done}")
        return tuple(numbers)
    return tuple(spread([number for number in stored.committed if number > 0], config.sample))


def spread(rounds: list[int], sample: int | None) -> list[int]:
    """So many of the rounds, evenly spread, the last among them; all where there are no more.

    >>> spread([1, 2, 3, 4, 5, 6, 7], 3)
    [2, 4, 7]
    """
    if sample is None or sample >= len(rounds):
        return rounds
    return [rounds[number * len(rounds) // sample - 1] for number in range(1, sample + 1)]
