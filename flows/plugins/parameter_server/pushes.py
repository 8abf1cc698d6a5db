"""Tasks of asynchronous rounds: they map what partitions push, apply pushes, and commit rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roundweave.flows.plugins.parameter_server.orders import ServerRound
from roundweave.flows.plugins.parameter_server.steps import Pushed, carried, serve
from roundweave.storage.rounds.commits import Commit, InFlight
from roundweave.storage.values.state import Update
from roundweave.storage.values.tensors import Vectors, tensor_bytes
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.rounds.job import STORE, Job
from roundweave.tasks.rounds.persistence.apart import with_bytes
from roundweave.tasks.rounds.persistence.committing import Computed, commit_round, score_outcome
from roundweave.tasks.rounds.persistence.mapping import Again, check_machine, map_twice, record_of
from roundweave.tasks.rounds.persistence.recomputing import read_outcome
from roundweave.tasks.rounds.scoring import Tally
from roundweave.tasks.rounds.steps import Outcome

Ref = list[Any]
"""Where a push is, ``[result, place]``: the result of its task is a list of pushes, `place` the index in it."""

Version = Sequence[Outcome]
"""The outcomes of rounds computed together, of which the last is the version that maps fetch."""

Due = tuple[int, InFlight, Version, Ref | Mapping[str, Vectors]]
"""A map to run: the partition, what is in flight of it, the version that it fetched, and what it carries.

That is in its push before; or it was read from the store, vectors (element,) by slot.
"""


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
    if job.work.partitions.sites:
        mapped = with_bytes(mapped, tensor_bytes(state) + tensor_bytes(carry))
    began, own = (in_flight.push, in_flight.version), Update({}, carry=given[partition])
    # Whether it is stored depends on the round that takes it. If it may not be, its digest is computed there.
    record = record_of(mapped, not job.attempt.keep.recomputes)
    return Pushed(partition, mapped.update.to_send(), record, own, began, job.work.code)


def at(ref: Ref) -> Pushed:
    pushed: Sequence[Pushed]
    pushed, place = ref
    return pushed[place]


def pushes_at(refs: Sequence[Ref]) -> list[Pushed]:
    pushed = map(at, refs)
    return [replace(each, update=each.update.received()) for each in pushed]


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


def commit_server_rounds(
    job: Job,
    served: Sequence[tuple[Sequence[Outcome], Sequence[Sequence[Ref]], Sequence[Sequence[Tally]]]],
    last: int,
) -> list[Commit]:
    """Commit rounds as the server computed them. Ends early after a commit that says to stop.

    `served` has, for rounds computed together, their outcomes, the pushes of each, and the tallies of the last
    one's scores. `last` is the last round of the window.
    """
    commits: list[Commit] = []
    for computed in (each for together in served for each in computed_rounds(*together)):
        previous, closing = commits[-1] if commits else None, computed.outcome.state.round == last
        commits.append(commit_round(job, computed, previous, closing))
        if commits[-1].stop:
            break
    return commits


def computed_rounds(
    outcomes: Sequence[Outcome], pushed: Sequence[Sequence[Ref]], tallies: Sequence[Sequence[Tally]]
) -> Iterator[Computed]:
    """Yield rounds that the server computed together, from the pushes of each and the tallies of the last one."""
    for outcome, refs in zip(outcomes, pushed, strict=True):
        updates = {push.partition: push.update for push in pushes_at(refs)}
        yield Computed(outcome, tallies if outcome is outcomes[-1] else (), updates=updates)
