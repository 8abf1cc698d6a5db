"""``roundweave.replay``: computes stored rounds again and compares the bits with the committed ones.

Impossible requests are refused before any process is started.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, model_validator

from roundweave.flows.config.recorded import codes_of, other_data
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.evidence.opening import OfRun, described_again, examples_wanted, plan_again
from roundweave.flows.machines import Machine, machines
from roundweave.flows.planning.describing import Described
from roundweave.flows.reporting.bar import bar_of_rounds
from roundweave.flows.reporting.listening import notify_progress
from roundweave.storage.errors import RoundMissing, UsageError, cut, listed
from roundweave.storage.places.base import full_address
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.storage.values.digests import differing
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.fingerprints import differing_numerics, versions
from roundweave.tasks.rounds.evidence.results import Difference, RoundResult, difference_as_json
from roundweave.tasks.rounds.job import Attempt, Job, Work, replay_windows

IDENTICAL, DIFFERS, KEY_DIFFERS = 0, 1, 3
"""Exit codes: all rounds are identical; one differs and the key is the same; one differs and so does the key."""


@dataclass(frozen=True)
class Replay:
    """The results of replayed rounds of a run, and the parts of the key that have changed since.

    `key` describes each changed part by its name (fingerprint, code, data, versions); equal parts are left out.
    """

    run: str
    key: Mapping[str, str]
    results: tuple[RoundResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every round that could be replayed has the bits that were committed."""
        return not self.differing

    @property
    def replayed(self) -> list[int]:
        """The rounds that could be replayed."""
        return [result.round for result in self.results if result.lacking is None]

    @property
    def differing(self) -> list[RoundResult]:
        """The results of rounds that differ from the committed ones."""
        return [result for result in self.results if result.difference is not None]

    @property
    def lacking(self) -> list[RoundResult]:
        """The results of rounds that could not be replayed, since something that they need is no longer stored."""
        return [result for result in self.results if result.lacking is not None]

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return IDENTICAL if self.identical else KEY_DIFFERS if self.key else DIFFERS

    def summary(self) -> dict[str, Any]:
        """Return the result as a JSON object, with each round's status and first differing tensor."""
        rounds = [_row(result) for result in self.results]
        return {"run": self.run, "identical": self.identical, "key": dict(self.key), "rounds": rounds}

    @property
    def lines(self) -> list[str]:
        """Lines that say how many rounds are identical, how the others differ, and what is not as recorded."""
        found = "bit-identical" if self.identical else f"{len(self.differing)} of {len(self.replayed)} differ"
        lines = [
            f"{self.run}, round {listed(self.replayed)}: {found}",
            *cut([str(each) for each in self.differing]),
        ]
        if self.lacking:
            rounds = listed(result.round for result in self.lacking)
            lines.append(f"not replayed: round {rounds}; {self.lacking[0].lacking}")
        if rounds := listed(result.round for result in self.results if result.raised):
            raised = (partition for result in self.results for partition in result.raised)
            partitions = listed(raised, self.results[0].names)
            lines.append(f"not mapped again: partition {partitions} in round {rounds}, as it had raised")
        return [*lines, *(f"not as recorded: {name}: {what}" for name, what in self.key.items())]

    def __str__(self) -> str:
        return "; ".join(self.lines)


def _row(result: RoundResult) -> dict[str, Any]:
    difference = result.difference
    return {
        "round": result.round,
        "status": result.status,
        "differs": difference and difference.path,
        "partition": difference and difference.partition,
        "largest": difference and difference_as_json(difference.largest),
        "said": difference.said if difference else result.said,
    }


class ReplayConfig(OfRun):
    """The configuration of a replay."""

    rounds: tuple[int, ...] | Literal["last", "all"] = Field(
        default="last", description="round numbers (negative from the end), or all, or last"
    )
    sample: int | None = Field(default=None, ge=1, description="replay N evenly spread rounds, with the last one")

    @model_validator(mode="after")
    def _one_choice(self) -> ReplayConfig:
        if self.sample is not None and self.rounds != "last":
            raise ValueError("choose rounds, all of them or a sample: one of the three")
        return self


@examples_wanted()
def replay(config: ReplayConfig) -> Replay:
    """Replay rounds without Prefect, with the executor `inline` also without Dask.

    Raises `RoundweaveError` for mistakes in the run, the choice of rounds, the code or the data before anything is
    started, and `RoundMissing` if a round that was named needs something that is no longer stored, or if all do.
    """
    stored = open_stored(config.run, config.root)
    rounds = _chosen(config, stored)
    plan = plan_again(stored, config)
    with bar_of_rounds(len(rounds)), described_again(plan, config) as (described, executor):
        replayed = _replayed(stored, rounds, described, executor)
    named = config.rounds != "all" and config.sample is None
    if replayed.lacking and (named or not replayed.replayed):
        numbers = listed(result.round for result in replayed.lacking)
        raise RoundMissing(f"round {numbers} of {stored.name} cannot be replayed: {replayed.lacking[0].lacking}")
    return replayed


def _chosen(config: ReplayConfig, stored: StoredRun) -> tuple[int, ...]:
    """Return the chosen rounds in ascending order. Raises `RoundMissing`, and `UsageError` for round 0."""
    if stored.done == 0:
        raise RoundMissing(f"{stored.name} has no round to replay yet, only its initial state")
    if config.sample is None and config.rounds == "last":
        return (stored.done,)
    if isinstance(config.rounds, tuple):
        numbers = sorted({stored.round(number).number for number in config.rounds})
        if 0 in numbers:
            raise UsageError(f"round 0 is the initial state, which has no maps; replay 1 to {stored.done}")
        return tuple(numbers)
    return tuple(evenly_spread([number for number in stored.committed if number > 0], config.sample))


def evenly_spread(rounds: list[int], sample: int | None) -> list[int]:
    """Return at most `sample` of the rounds, evenly spread and including the last; None means all of them.

    >>> evenly_spread([1, 2, 3, 4, 5, 6, 7], 3)
    [2, 4, 7]
    """
    if sample is None or sample >= len(rounds):
        return rounds
    return [rounds[number * len(rounds) // sample - 1] for number in range(1, sample + 1)]


def _replayed(stored: StoredRun, rounds: Sequence[int], described: Described, executor: Executor) -> Replay:
    """Return the results of the rounds, which are computed several at once."""
    work = described.work
    key = key_differences(stored, described, machines(executor, work, ()))
    # No lease and no writing: the token only tells this reader's tasks from those of others.
    attempt = Attempt(full_address(stored.address), secrets.token_hex(4), epoch=0, rounds=stored.rounds)
    job = Job(work, attempt)
    results = other_network(attempt.open(), work, rounds)
    for window in replay_windows(rounds if not results else (), job.work.split):
        for result in executor.replay(job, window):
            results.append(replace(result, names=stored.partition_names))
            notify_progress(len(results), len(rounds), str(results[-1]))
    return Replay(stored.name, key, tuple(results))


def other_network(store: RoundStore, work: Work, rounds: Sequence[int]) -> list[RoundResult]:
    """Return a result for each round if the network's layout differs from the stored one; else an empty list."""
    now, then = work.objective.layout, store.schema.layout
    if now == then:
        return []
    pairs = [(getattr(now, kind), getattr(then, kind)) for kind in ("params", "buffers", "frozen", "aliases")]
    new = [str(part) for mine, theirs in pairs for part in mine if part not in theirs]
    old = [str(part) for mine, theirs in pairs for part in theirs if part not in mine]
    said = f"the network has {', '.join(new) or 'another order'} instead of {', '.join(old) or 'that'}"
    difference = Difference("layout", said=said[:300])
    return [RoundResult(round, difference) for round in rounds]


def key_differences(stored: StoredRun, described: Described, machines: Sequence[Machine]) -> dict[str, str]:
    """Descriptions of the parts of the key that differ from the recorded ones, by name.

    The key is all that decides a run's bits besides what is stored: fingerprint, code, data and versions.
    """
    recorded = {name: value for name, value in stored.attributes.items() if isinstance(value, Mapping)}
    then = recorded.get("versions", {})
    now = versions() | {name: one for name, one in described.plan.decided_by.items() if name in then}
    changed = (f"{name} {now.get(name)} instead of {then.get(name)}" for name in differing(then, now))
    parts = {
        "fingerprint": _other_machines(recorded, machines),
        "code": _other_code(described.plan.config),
        "data": other_data(recorded, described.description.recorded),
        "versions": ", ".join(changed),
    }
    return {name: what for name, what in parts.items() if what}


def _other_machines(attributes: Mapping[str, Any], present: Sequence[Machine]) -> str:
    """Return a text that names the places whose numerics fingerprint differs from the recorded one."""
    recorded, named = attributes.get("fingerprint"), attributes.get("fingerprints", {})
    if not recorded and not named:
        return "none was recorded, for the run accepts unequal machines"
    places: dict[str, str] = {}
    for machine in present:
        expected = named.get(machine.at, recorded)
        if expected and (differs := differing_numerics(expected, machine.fingerprint)):
            places.setdefault(differs, machine.where)
    return "; ".join(f"{place} has {differs}" for differs, place in places.items())


def _other_code(config: TrainConfig) -> str:
    """Return a text that names the configuration's functions whose installed package now has another version."""
    return "; ".join(f"{code.label} is of another version" for code in codes_of(config) if code.now() != code)
