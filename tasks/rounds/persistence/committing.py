"""The end of a round: reduce and apply the results of its blocks, score the state, and commit it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.places.base import beside
from roundweave.storage.rounds.commits import Commit, ProcessGroupRecord, Score, SplitRecord, ranking
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors, views
from roundweave.tasks.algorithms.algebra import OWN, own_slots
from roundweave.tasks.data.description import CallEach
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.rounds.job import Attempt, Job, Work
from roundweave.tasks.rounds.persistence.mapping import this_worker
from roundweave.tasks.rounds.persistence.outcomes import HELD
from roundweave.tasks.rounds.scorers import parts_of
from roundweave.tasks.rounds.scoring import Tally
from roundweave.tasks.rounds.steps import Outcome, judge_round, score_block


@dataclass(frozen=True)
class Computed:
    """A round that is computed and not committed yet: its outcome, and the tallies of each block's scores.

    `asked` are the partitions whose update was wanted, if those were not all that may take part. `updates`, by
    partition, are those that were not stored when they were mapped. `process_group` reports what its ranks sent
    and held. `digests` are those of the state's tensors. They are given if ranks decided whether the state is
    `stored`, and stored it.
    """

    outcome: Outcome
    tallies: Sequence[Sequence[Tally]] = ()
    asked: Sequence[int] | None = None
    updates: Mapping[int, Update] = field(default_factory=dict)
    process_group: ProcessGroupRecord | None = None
    digests: Mapping[str, str] | None = None
    stored: bool = True


def score_outcome(job: Job, after: Outcome, data: BlockExamples) -> list[Tally]:
    """Score the state after a round on what a block scores; `commit_round` stores the score."""
    own = own_params(job.work, job.attempt.open, after)
    return score_block(job.work, after.state, {p: each.scored for p, each in data.items()}, own)


def score_again(work: Work, after: Outcome, gather: CallEach, store: RoundStore | None = None) -> Score | None:
    """Return the score of a state on the examples that the committed round of a `store` was scored on.

    Without a store, they are the examples of the first round. At first partitions have no networks of their own,
    and one process scores what is held out for all. `gather` calls a function with numbers, where the examples
    lie.
    """
    round, own = after.state.round, None
    if store is not None and round:
        commit, members = store.log.read(round), work.asks(round) or range(work.partitions.split.partitions)
        answered = members if commit.server else [p for p in members if p in commit.updates]
        if (params := own_params(work, lambda: store, after)) is not None:
            own = {partition: params(partition) for partition in members}
    else:
        work = replace(work, scorers=tuple(scorer for scorer in work.scorers if not scorer.own))
        members = work.asks(1) or range(work.partitions.split.partitions)
        answered = members = members[:1] if work.partitions.held_out_together else members
    tallies = gather(functools.partial(_score_again, work, after.state, members, own, store is not None), answered)
    return judge_round(work, round, [tally for each in tallies for tally in each])[0]


def _score_again(
    work: Work,
    state: State,
    members: Sequence[int],
    own: Mapping[int, Vectors] | None,
    keep: bool,
    partition: int,
) -> list[Tally]:
    """Return the tallies of one scoring partition. `own` are the parameters of partitions with own networks.

    If other rounds may be scored next, the scored examples are cached.
    """
    of = _known_parts if keep else parts_of
    number, place = work.split(state.round), members.index(partition)
    parts = of(work.scorers, work.partitions, number, partition, place, len(members))
    return score_block(work, state, {partition: parts}, None if own is None else own.__getitem__)


_known_parts = functools.lru_cache(maxsize=1024)(parts_of)
"""Return what `parts_of` gives, cached while many rounds are scored again."""


def commit_round(
    job: Job, computed: Computed, previous: Commit | None, closing: bool, held: bool = False
) -> Commit:
    """Write a round's state and its commit, after which the round exists.

    Does nothing if the attempt has stopped at the `previous` commit, and returns that one. `closing` is True for
    the last round of a window from which another process may go on: its state is always stored. The outcome is
    `held` if this process may go on from it.
    """
    after, store, attempt = computed.outcome, job.attempt.open(), job.attempt
    state = after.state
    previous = previous or store.log.read(state.round - 1)
    if previous.stop and previous.token == attempt.token:
        return previous
    scored, own = judge_round(job.work, state.round, [tally for block in computed.tallies for tally in block])
    judged = _judged(attempt, previous, scored)
    stored = computed.stored if computed.digests else stores_state(job, state.round, closing or judged["stop"])
    late = _late(job, after)
    _check_room(attempt, state.round, len(after.records))
    with beside(store.place, store.schema.state_bytes if stored or computed.updates else 0) as persist:
        kept = {p: update for p, update in computed.updates.items() if p in late or _stored(job, after, p)}
        persist(store.tensors.write_updates, state.round, kept)
        if computed.digests is None:
            persist(_persist_state, job, store, after, stored)
        before = store.log.link_before(state.round)
        described = store.describe(state, attempt.token, attempt.epoch, computed.digests)
    records = {p: replace(r, metrics={**r.metrics, **own.get(p, {})}) for p, r in after.records.items()}
    records |= {p: replace(records[p], digest=update_digest(u)) for p, u in kept.items() if not records[p].digest}
    asked = () if after.server else computed.asked or job.plan_of(state.round).taking_part
    now = time.time()
    commit = replace(
        described,
        updates=records,
        absent=tuple(partition for partition in asked if partition not in records),
        carry_from=after.carry_from,
        server=after.server,
        split=_split(job.work.partitions, job.work.split(state.round)),
        **judged,
        updates_stored=job.stores_updates(state.round),
        late=late,
        stored=stored,
        executor=attempt.executor,
        worker=this_worker(),
        process_group=computed.process_group,
        seconds=max(0.0, now - max(previous.time, attempt.started)),
        time=now,
    )
    commit = store.commit(commit, before)
    HELD.clear()
    if (closing or held) and not commit.stop and commit.round < attempt.rounds:
        HELD[attempt.token, commit.round] = after
    return commit


def _check_room(attempt: Attempt, round: int, updates: int) -> None:
    """Raise `RoundFailed` if the disk has no room for this state and, unless this round is the last, the next.

    Only attempts that may stop early begin without room for all of their rounds. The updates of this round are
    written already, and those of the next may be.
    """
    place, schema = attempt.open().place, attempt.open().schema
    free = place.free() if attempt.may_stop else None
    following = (round < attempt.rounds) * (schema.state_bytes + updates * schema.update_bytes)
    if free is not None and free < schema.state_bytes + following:
        raise RoundFailed(
            f"round {round}: {free / 1e6:.0f} MB are free at {place}, which will be full soon; rounds to "
            f"{round - 1} are kept. Make room, or resume with a --keep that stores less"
        )


STATE_SECONDS = 10.0
"""After so many seconds without a stored state the next one is stored. Going on costs about as long at most."""


def stores_state(job: Job, round: int, needed: object) -> bool:
    """Tell whether a state is stored: because it is `needed`, is the last, or none was stored for a while.

    The job may say so, too.
    """
    idle = time.monotonic() - job.attempt.open().tensors.state_written
    return bool(needed) or round == job.attempt.rounds or job.stores_state(round) or idle > STATE_SECONDS


def _late(job: Job, after: Outcome) -> tuple[int, ...]:
    """Return the partitions of a server's round whose updates are stored, as they cannot be mapped again."""
    round, keep = after.state.round, job.attempt.keep
    if not (after.server and keep.maps_again) or job.stores_updates(round):
        return ()
    began = {p: r.arrival.version for p, r in after.records.items() if r.arrival and not r.refused}
    return tuple(p for p, since in began.items() if any(keep.state(n, n) for n in range(since + 1, round)))


def _stored(job: Job, after: Outcome, partition: int) -> bool:
    """Tell whether an update of a computed round is stored, like `Job.stores_update` for a new one."""
    round = after.state.round
    return job.stores_updates(round) or after.carry_from.get(partition) == round


def _persist_state(job: Job, store: RoundStore, after: Outcome, stored: bool) -> None:
    """Write the matches of a round, and its state if it is to be `stored`. A committed round stays as it is."""
    round = after.state.round
    kept = {p: match for p, match in after.matches.items() if _stored(job, after, p)}
    if (stored or kept) and not store.log.has(round):
        if stored:
            store.tensors.write_state(after.state)
        store.tensors.write_matches(round, kept)


@functools.lru_cache(maxsize=2)
def _split(partitions: Partitions, number: int) -> SplitRecord | None:
    """Return the commit's record of a split, cached for all rounds of the split."""
    if partitions.source.partitioned:
        return None
    return split_record(number, partitions.assignment(number))


def _judged(attempt: Attempt, previous: Commit, score: Score | None) -> dict[str, Any]:
    """Return a commit's judgement of a score: the best so far, how many scores ago, and why the run stops."""
    best, left_out, since_best = previous.best, previous.best_left_out, previous.since_best
    if score is not None:
        name, least = ranking(attempt.best)
        number, sign = score.row().get(name, math.nan), 1 if least else -1
        better = best is None or (score.left_out, sign * number) < (left_out, sign * best)
        since_best += 1
        if better and math.isfinite(number):
            best, left_out, since_best = number, score.left_out, 0
    judged: dict[str, Any] = {"score": score, "best": best, "best_left_out": left_out, "since_best": since_best}
    return {**judged, "stop": attempt.stop_reason(replace(previous, round=previous.round + 1, **judged))}


Open = Callable[[], RoundStore]
"""Opens the store of a run, only when something is read from it."""


def own_params(work: Work, open_store: Open, after: Outcome) -> Callable[[int], Vectors] | None:
    """Return the parameters of each partition's network after a round, (element,) by dtype; None without own ones.

    They are those of the state, replaced by what the partition carries of a network of its own. With a schedule
    partitions have none, because their carry is stored only with their round. Raises `UsageError` for a slot of a
    missing layer.
    """
    slots, specs = own_slots(work.algorithm.map.carry), work.objective.layout.params
    held = {s: [spec.name for spec in specs if f"{OWN}.{spec.name}.".startswith(f"{s}.")] for s in slots}
    if lacking := [slot for slot, names in held.items() if not names]:
        raise UsageError(f"the map carries {lacking[0]}, and the network has no such layer; name one that it has")

    def read(partition: int) -> Vectors:
        source, params = after.carry_from.get(partition), {k: v.clone() for k, v in after.state.params.items()}
        carry = {} if source is None else open_store().tensors.read_carry(source, partition)
        for slot, vectors in carry.items():
            for name in held.get(slot, ()):
                views(specs, params)[name].copy_(views(specs, vectors)[name])
        return params

    return read if slots and not work.schedule else None
