"""Tasks of asynchronous rounds: they map what partitions push, serve rounds, and commit them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from storage.rounds.commits import Commit, InFlight
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.asynchronous.steps import Pushed, carried, map_version, serve
from tasks.data.partitions import Partition
from tasks.persistence.committing import (
    Again,
    check_machine,
    commit_round,
    here,
    read_carry,
    read_outcome,
    record_of,
)
from tasks.persistence.recomputing import remember
from tasks.rounds.job import Job
from tasks.rounds.scoring import Tally
from tasks.rounds.steps import Mapped, Outcome
from tasks.when import ServerRound

Ref = tuple[Sequence[Pushed], int]
"""A push in the list of those that one task has mapped, and its index in the list."""

Due = tuple[int, InFlight, Outcome, Ref | int | None]
"""A map to run: the partition, what is in flight of it, the fetched outcome, and where to find its carry.

The carry is in its push before; or it is read from the store, from the update of the round given; None for none.
"""


def make_pushes(job: Job, data: Sequence[Partition], dues: Sequence[Due], again: Again = here) -> list[Pushed]:
    """Map partitions of one block, one after the other, and return their pushes.

    `data` are the examples of all partitions of the block.
    """
    return [_push_due(job, data, *due, again=again) for due in dues]


def _push_due(
    job: Job,
    data: Sequence[Partition],
    partition: int,
    in_flight: InFlight,
    fetched: Outcome,
    before: Ref | int | None,
    again: Again,
) -> Pushed:
    examples = data[partition - _first(job, partition)]
    carry = read_carry(job, before, partition) if before is None or isinstance(before, int) else at(before).carry
    return make_push(job, fetched.state, in_flight, partition, examples, carry, again)


def at(ref: Ref) -> Pushed:
    pushed, place = ref
    return pushed[place]


def _first(job: Job, partition: int) -> int:
    """The first partition of the block in which a partition is."""
    return next(span.start for span in map(job.plan.span, range(job.plan.blocks)) if partition in span)


def make_push(
    job: Job,
    fetched: State,
    in_flight: InFlight,
    partition: int,
    examples: Partition,
    carry: Mapping[str, Vectors],
    again: Again = here,
) -> Pushed:
    """Map a partition for the push that is in flight, with what it carries, vectors (element,) by slot.

    The update is not stored here, because its round is known only once it arrives at the server. If the map
    raises, `again` runs it once more.
    """
    started = time.perf_counter()
    map_it = partial(_map_checked, job, fetched, in_flight, partition, examples, carry)
    mapped = map_it()
    if mapped.raised:
        mapped = again(map_it)
    record = record_of(mapped, time.perf_counter() - started)
    began, kept = (in_flight.push, in_flight.version), Update({}, carry=carried(job.work, in_flight, carry))
    return Pushed(partition, mapped.update, record, kept, began, job.work.code)


def _map_checked(job: Job, *arguments: Any) -> Mapped:
    check_machine(job)
    return map_version(job.work, *arguments)


def serve_rounds(
    job: Job, before: Outcome, rounds_taken: Sequence[ServerRound], pushed: Sequence[Sequence[Ref]]
) -> Outcome:
    """The outcome after several rounds of the server, from the pushes that each of them applies."""
    for taken_in, refs in zip(rounds_taken, pushed, strict=True):
        before = serve(job.work, before, taken_in, list(map(at, refs)))
    return before


def commit_server_rounds(
    job: Job,
    first: int,
    rounds_taken: Sequence[ServerRound],
    pushed: Sequence[Sequence[Ref]],
    tallies: Sequence[Sequence[Sequence[Tally]]],
    last: int,
) -> list[Commit]:
    """Serve rounds once more, from round `first` on, and commit each. Ends early after a commit that says to stop.

    `last` is the last round of the window. The lists have one entry for each round.
    """
    outcome, commits = read_outcome(job, first - 1), list[Commit]()
    for taken_in, refs, scores in zip(rounds_taken, pushed, tallies, strict=True):
        pushes = list(map(at, refs))
        outcome = serve(job.work, outcome, taken_in, pushes)
        previous, closing = commits[-1] if commits else None, outcome.state.round == last
        updates = {push.partition: push.update for push in pushes}
        commits.append(commit_round(job, outcome, scores, previous, closing, updates))
        if commits[-1].stop:
            break
    remember(job.attempt.open(), outcome)
    return commits
