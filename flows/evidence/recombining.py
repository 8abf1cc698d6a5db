"""``roundweave.recombine``: reduces stored rounds again, with other parts or without some partitions.

Impossible requests are refused before any work is done.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from roundweave.flows.config.algorithms import Parts, Recombined
from roundweave.flows.config.base import PartitionsGiven
from roundweave.flows.config.recorded import check_examples
from roundweave.flows.evidence.opening import OfRun, described_again, examples_wanted, plan_again
from roundweave.flows.planning.describing import Described, describe
from roundweave.flows.recording import create_run, new_run
from roundweave.storage.errors import UsageError, listed
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.measures import carried
from roundweave.storage.runs.names import WhichRound, is_run, run_address
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.fingerprints import Fingerprint, check_fingerprint, fingerprint
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.rounds.evidence.recombining import (
    Recombination,
    Recombining,
    recombine_stored,
    recombined_outcome,
)


class RecombineConfig(Parts, OfRun):
    """The stored rounds to reduce again, the parts to use, and the `name` of a new run for the result.

    Raises:
        UsageError: A value is wrong, or a field is unknown. The message names the nearest field.

    Example:
        >>> config = rw.RecombineConfig(run="first", round=2, reduce="trimmed_mean:1", without=(3,))
    """

    round: WhichRound | None = Field(
        default=None, description="round to recombine: a number, last or best; default: each round on its own"
    )
    without: PartitionsGiven = Field(
        default=(), description="partitions to leave out, by number or name, such as 3,berlin"
    )

    @model_validator(mode="after")
    def _one_is_kept(self) -> RecombineConfig:
        if self.name is not None and self.round is None:
            raise ValueError("a new run stores the result of one round; give round")
        return self


@examples_wanted()
def recombine(config: RecombineConfig) -> Recombination:
    """Reduce stored rounds again, with another reduce or apply, or without some partitions. Nothing is trained.

    The function needs no Prefect, and no Dask with the executor ``inline``.

    Args:
        config: The run, its rounds, the parts and partitions, and the name of a new run for one of the results.

    Returns:
        For each round the digest and the scores of the new state, beside the recorded ones.

    Raises:
        UsageError: The request does not fit the run. Nothing was started.
        RoundPruned: Updates that are needed are no longer stored.
        RoundweaveError: The store or the cluster failed; the message says why.

    Example:
        >>> config = rw.RecombineConfig(run="first", round=2, reduce="median", executor="inline")
        >>> rw.recombine(config).rounds[0].identical
    """
    run = open_stored(config.run, config.root)
    if config.name and is_run(address := run_address(config.root, config.name)):
        raise UsageError(f"{address} exists already; keep the round under another name")
    rounds, without = _rounds(run, config), frozenset(map(run.find_partition, config.without))
    plan = plan_again(run, config, **_with_parts(run, config))
    _check_left(run, rounds, without, plan.config.quorum)
    states = all(run.absent.has_state(number - before) for number in rounds for before in (0, 1))
    whole = states and all(map(run.absent.has_update, rounds))
    # What is not stored is computed again with the recorded parts.
    as_recorded = None if whole or not config.recorded() else plan_again(run, config)
    with described_again(plan, config) as (described, executor):
        work = described.work
        check_examples(run, described.description.recorded)
        recorded = describe(as_recorded, executor.gather).work if as_recorded else work
        subject = Recombining(work, recorded, full_address(run.address), rounds, without)
        numbers, again = range(len(rounds)), partial(recombine_stored, subject)
        if work.partitions.placement.stays:  # examples are scored there
            results = tuple(again(number, executor.gather) for number in numbers)
        else:
            results = tuple(executor.gather(again, numbers, stored=True))
        saved = _saved(run, config, subject, described, executor) if config.name else None
    return Recombination(run.name, results, saved)


def _rounds(run: StoredRun, config: RecombineConfig) -> tuple[int, ...]:
    """Return the numbers of the rounds to reduce. Each has its own record and the record of the round before."""
    whole = set(run.committed)
    if config.round is None:
        rounds = tuple(number for number in run.committed if number - 1 in whole)
        if not rounds:
            raise UsageError(f"{run.name} has no round to reduce again; train one first")
        return rounds
    number = run.round(config.round).number
    if number == 0:
        raise UsageError("round 0 is the initial state, which has no updates to reduce; name a later round")
    return (run.round(number - 1).number + 1,)


def _with_parts(run: StoredRun, config: RecombineConfig) -> dict[str, Any]:
    """Return the changes of the recorded configuration that replace its parts, if any are given."""
    own = Recombined(**run.config.get("recombined") or {})
    return {"recombined": own.model_copy(update=parts)} if (parts := config.recorded()) else {}


def _check_left(run: StoredRun, rounds: tuple[int, ...], without: frozenset[int], quorum: int) -> None:
    """Raise `UsageError` if a round has too few accepted updates left."""
    for number in rounds:
        accepted = run.round(number).commit.accepted
        left = set(accepted) - without
        if len(left) < quorum:
            out = f", without {listed(without, run.partition_names)} it has {len(left)}" if without else ""
            raise UsageError(
                f"round {number} accepted {len(accepted)} updates{out}, the quorum is {quorum}; name another round"
            )


def _saved(
    run: StoredRun,
    asked: RecombineConfig,
    subject: Recombining,
    described: Described,
    executor: Executor,
) -> str:
    """Create a run that begins with the state after the only round, like a fork of that round.

    Returns the address of the new run.
    """
    (number,), config = subject.rounds, described.plan.config
    work = replace(subject.work, before=subject.work.before + number)
    parts = (config.recombined or Recombined()).model_copy(update={"before": work.before})
    config = config.model_copy(update={"recombined": parts, "rounds": max(1, run.rounds - number)})
    address = full_address(run_address(config.root, asked.name or ""))
    (after,) = executor.gather(partial(recombined_outcome, subject), range(1), stored=True)
    taken = {p: update for p, update in carried(run, number).items() if after.carry_from.get(p) == number}
    described = replace(described, plan=replace(described.plan, config=config), work=work)
    parent = {
        "run": run.name,
        "round": number,
        "chain": run.round(number).chain,
        "changed": _changed(asked, parts),
    }
    common = _fingerprint(run, executor, work.mapper.device)
    known = {"fingerprint": common, "fingerprints": run.attributes.get("fingerprints", {})}
    before = carried(run, number - 1) | taken
    create_run(address, new_run(described, parent=parent, **known), after.state, before, executor.gather)
    return address


def _fingerprint(run: StoredRun, executor: Executor, device: str) -> Fingerprint | None:
    """Return the recorded numerics fingerprint.

    Raises `NumericsMismatch` if this executor's machines have another.
    """
    recorded: Fingerprint | None = run.attributes["fingerprint"]
    for place, present in executor.each(partial(fingerprint, device)).items():
        check_fingerprint(recorded or present, present, place)
    return recorded


def _changed(asked: RecombineConfig, parts: Recombined) -> dict[str, Any]:
    """Return the changes of the recorded round, by name, with values for people."""
    named = {name: getattr(parts, name) for name in ("reduce", "apply") if getattr(asked, name) is not None}
    changed = {name: part.label if isinstance(part, Code) else part for name, part in named.items()}
    return changed | asked.apply_options | ({"without": list(asked.without)} if asked.without else {})
