"""The steps of a server's rounds: a partition's map, how the server applies what arrived, and its commits.

Those before `make_pushes` are pure functions; from there on they read a store, and write to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from roundweave.flows.plugins.parameter_server.orders import Draw, ServerRound, next_in_flight
from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, ServerRecord, UpdateRecord
from roundweave.storage.values.state import Update
from roundweave.storage.values.tensors import Vectors, tensor_bytes
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.numerics.pieces import accumulator
from roundweave.tasks.own_code.code import Code, WithCode
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import STORE, Job, Work, sizes_to_draw
from roundweave.tasks.rounds.persistence.apart import with_bytes
from roundweave.tasks.rounds.persistence.committing import Computed, commit_round, score_outcome
from roundweave.tasks.rounds.persistence.mapping import Again, check_machine, map_twice, record_of
from roundweave.tasks.rounds.persistence.outcomes import read_outcome
from roundweave.tasks.rounds.scoring import Tally
from roundweave.tasks.rounds.steps import BlockResult, Outcome, fold_block, reduce_apply

Ref = list[Any]
"""Where a push is, ``[result, place]``: the result of its task is a list of pushes, `place` the index in it."""

Version = Sequence[Outcome]
"""The outcomes of rounds computed together, of which the last is the version that maps fetch."""

Due = tuple[int, InFlight, Version, Ref | Mapping[str, Vectors]]
"""A map to run: the partition, what is in flight of it, the version that it fetched, and what it carries.

That is in its push before; or it was read from the store, vectors (element,) by slot.
"""


class Served(NamedTuple):
    """Rounds that the server computed in one task.

    `outcomes` is the result with the outcome of each, `pushed` says where the pushes of each are, and `scores` are
    the results with the tallies of each block, for the last round, if it is scored.
    """

    outcomes: Any
    pushed: Sequence[Sequence[Ref]]
    scores: Sequence[Any]


@dataclass(frozen=True)
class Pushed(WithCode):
    """What a partition pushes to the server: its update, and the record that the commit will have of it.

    `before` has the carry that the partition was mapped with; the partition goes on with it if the update is
    refused. `began` is the number of the push and the version that it was mapped from, None if unknown.
    """

    partition: int
    update: Update
    record: UpdateRecord
    before: Update = NOTHING
    began: tuple[int, int] | None = None
    code: tuple[Code, ...] = ()

    @property
    def carry(self) -> Mapping[str, Vectors]:
        """What the partition carries to its next map, vectors (element,) by slot."""
        return self.update.carry if self.record.refused is None else self.before.carry


def recorded_push(work: Work, partition: int, record: UpdateRecord, update: Update) -> Pushed:
    """Rebuild a push from its stored update and record, as it was before the server judged its staleness."""
    stale = record.arrival and rules(work).refusal(record.arrival.staleness)
    record = replace(record, refused=None if stale == record.refused else record.refused, arrival=None)
    return Pushed(partition, update, record, code=work.code)


def rules(work: Work) -> Asynchronous:
    """The asynchronous settings of some work; only for work whose `when` is `Asynchronous`."""
    when = work.algorithm.when
    assert not when.together
    return when


def drawing(work: Work) -> Draw:
    """A function that draws the partition which computes next; None where each computes again itself."""
    partitions, earlier = work.partitions, work.before * rules(work).buffer
    if (draw := partitions.sampler.draw_next if partitions.sampler else None) is None:
        return None
    return lambda pushes, busy: draw(work.seed, earlier + pushes, sizes_to_draw(partitions, 0), busy)


def server_before(work: Work, recorded: ServerRecord | None) -> ServerRecord:
    """The server's record in the commit before a round; before round 1 all are in flight from the initial state.

    Raises `RoundFailed` for an odd one.
    """
    begun = work.asks(0) or range(work.partitions.split.partitions)
    server = recorded or ServerRecord({partition: InFlight() for partition in begun})
    if len(server.in_flight) != work.partitions.taking_part:
        raise RoundFailed(f"the server's record has {len(server.in_flight)} partitions in flight; restore it")
    return server


def carried(work: Work, in_flight: InFlight, carry: Mapping[str, Vectors]) -> Mapping[str, Vectors]:
    """What a partition carries to its next map, vectors (element,) by slot; nothing if a fetch replaces it."""
    return {} if _begins_anew(work, in_flight) else carry


def _begins_anew(work: Work, in_flight: InFlight) -> bool:
    return work.algorithm.map.fetch_ends_carry and rules(work).fetches(in_flight.push)


def serve(work: Work, before: Outcome, taken_in: ServerRound, pushed: Sequence[Pushed]) -> Outcome:
    """Apply the pushes of a server round to the outcome of the round before.

    `pushed` are in the order of `taken_in.partitions`. Raises `RoundFailed` if the new state is unsound, or if the
    latest update of every partition is.
    """
    when, round = rules(work), before.state.round + 1
    server = server_before(work, before.server)
    if unknown := sorted({each.partition for each in pushed} - server.in_flight.keys()):
        raise RoundFailed(f"round {round}: partition {unknown[0]} had no push in flight; restore its record")
    records = {each.partition: _judged(when, server, each) for each in pushed}
    accepted = {
        each.partition: _scaled(each.update, when.factor(_staleness(server, each.partition)))
        for each in pushed
        if records[each.partition].refused is None
    }
    if accepted:
        nodes = fold_block(replace(work, schedule=None), round, [(0, work.partitions.split.partitions)], accepted)
        applied = reduce_apply(work, before, [BlockResult(nodes, records)])
        records |= applied.records
    else:  # the state stays as it was before
        applied = Outcome(replace(before.state, round=round))
    unsound = {each.partition: each.record.refused for each in pushed if each.record.refused is not None}
    after = _after(work, server, taken_in, round, unsound, changed=bool(accepted))
    return Outcome(applied.state, records, _carry_from(work, before, server, pushed), applied.matches, after)


def _judged(when: Asynchronous, server: ServerRecord, pushed: Pushed) -> UpdateRecord:
    """The record of a push that arrives, with its staleness, and refused if it is too stale.

    Raises `RoundFailed` for another push than the one that is in flight.
    """
    expected, record = server.in_flight[pushed.partition], pushed.record
    # What is recorded must be what was computed, or the round could not be replayed.
    if pushed.began not in (None, (expected.push, expected.version)):
        push = f"push {expected.push} from row {expected.version}"
        raise RoundFailed(
            f"partition {pushed.partition} pushed {pushed.began}, but {push} is in flight; start again"
        )
    staleness = _staleness(server, pushed.partition)
    return replace(
        record,
        refused=record.refused or when.refusal(staleness),
        metrics={**record.metrics, "staleness": float(staleness)},
        arrival=Arrival(expected.push, expected.version, staleness),
    )


def _staleness(server: ServerRecord, partition: int) -> int:
    """How many rounds took an update since the state that a partition's push in flight began from."""
    return server.steps - server.in_flight[partition].steps


def _scaled(update: Update, factor: float) -> Update:
    """Multiply an update's direction, vectors (element,), by a factor; it is computed in the accumulator type."""
    if factor == 1.0:
        return update
    direction = {k: (v.to(accumulator(k)) * factor).to(v.dtype) for k, v in update.direction.items()}
    return replace(update, direction=direction)


def _carry_from(work: Work, before: Outcome, server: ServerRecord, pushed: Sequence[Pushed]) -> Mapping[int, int]:
    """The round in which each partition's carry was stored, by partition.

    A partition that fetched a state, and whose update is refused, has no carry.
    """
    sources = dict(before.carry_from)
    for each in pushed if work.algorithm.map.carry else ():
        if each.record.refused is None:
            sources[each.partition] = before.state.round + 1
        elif _begins_anew(work, server.in_flight[each.partition]):
            sources.pop(each.partition, None)
    return sources


def _after(
    work: Work,
    server: ServerRecord,
    taken_in: ServerRound,
    round: int,
    refused: Mapping[int, str],
    changed: bool,
) -> ServerRecord:
    """The server's record after a round, which `changed` the state if an update was accepted.

    `refused` has the reasons of unsound updates by partition.

    Raises `RoundFailed` if the latest update of every partition is unsound; where they give way to others, if
    those of so many partitions are that came one after the other.
    """
    unsound = (set(server.unsound) - set(taken_in.partitions)) | refused.keys()
    if work.rotating and len(refused) < len(taken_in.partitions):
        unsound = set()
    if len(unsound) >= len(server.in_flight):
        partition, reason = next(iter(refused.items()))
        raise RoundFailed(
            f"round {round}: no partition has a sound update left; {work.partitions.called(partition)}: {reason}. "
            f"Rounds to {round - 1} are kept and name the others; try a smaller lr, or check the data"
        )
    steps = server.steps + changed
    in_flight = next_in_flight(rules(work), server, taken_in, round, steps, drawing(work))
    return ServerRecord(in_flight, steps, tuple(sorted(unsound)))


def make_pushes(job: Job, data: BlockExamples, dues: Sequence[Due], again: Again) -> list[Pushed]:
    """Map partitions of one block, one after the other, and return their pushes.

    `data` are the examples of all partitions of the block. If a map raises, `again` runs it once more. The updates
    are not stored here, because their rounds are known only once they arrive at the server.
    """
    return [_make_push(job, data, due, again) for due in dues]


def _make_push(job: Job, data: BlockExamples, due: Due, again: Again) -> Pushed:
    partition, in_flight, fetched, before = due
    state, carry = fetched[-1].state, before if isinstance(before, Mapping) else at(before).carry
    given = {partition: carried(job.work, in_flight, carry)}
    examples = {partition: data[partition]}
    [mapped] = map_twice(job, state, examples, given.__getitem__, again, in_flight.push)
    if job.work.partitions.placement.stays:
        mapped = with_bytes(mapped, tensor_bytes(state) + tensor_bytes(carry))
    began, own = (in_flight.push, in_flight.version), Update({}, carry=given[partition])
    # Whether it is stored depends on the round that takes it. If it may not be, its digest is computed there.
    record = record_of(mapped, not job.attempt.keep.maps_again)
    return Pushed(partition, mapped.update.to_send(), record, own, began, job.work.code)


def at(ref: Ref) -> Pushed:
    pushed: Pushed = ref[0][ref[1]]
    return pushed


def pushes_at(refs: Sequence[Ref]) -> list[Pushed]:
    return [replace(each, update=each.update.received()) for each in map(at, refs)]


def serve_rounds(
    job: Job, before: Version, rounds_taken: Sequence[ServerRound], pushed: Sequence[Sequence[Ref]]
) -> Version:
    """The outcomes of the server's next rounds, from the pushes that each of them applies."""
    check_machine(job, STORE)
    outcomes = [before[-1]]
    for taken_in, refs in zip(rounds_taken, pushed, strict=True):
        outcomes.append(serve(job.work, outcomes[-1], taken_in, pushes_at(refs)))
    return outcomes[1:]


def newest(job: Job, outcomes: Version) -> Version:
    """The last outcome. It is a task of its own, so that its reader does not get the earlier outcomes, too."""
    return outcomes[-1:]


def read_version(job: Job, round: int) -> Version:
    """The version after a committed round, from the store."""
    return [read_outcome(job, round)]


def score_version(job: Job, version: Version, data: BlockExamples) -> Sequence[Tally]:
    """The tallies of a block's partitions for a version."""
    return score_outcome(job, version[-1], data)


def commit_server_rounds(job: Job, served: Sequence[Served], last: int) -> list[Commit]:
    """Commit rounds as the server computed them. Ends early after a commit that says to stop.

    `last` is the last round of the window.
    """
    commits: list[Commit] = []
    for computed in (each for together in served for each in computed_rounds(Served(*together))):
        previous, closing = commits[-1] if commits else None, computed.outcome.state.round == last
        commits.append(commit_round(job, computed, previous, closing))
        if commits[-1].stop:
            break
    return commits


def computed_rounds(served: Served) -> Iterator[Computed]:
    """Yield rounds that the server computed together."""
    for outcome, refs in zip(served.outcomes, served.pushed, strict=True):
        updates = {push.partition: push.update for push in pushes_at(refs)}
        yield Computed(outcome, served.scores if outcome is served.outcomes[-1] else (), updates=updates)
