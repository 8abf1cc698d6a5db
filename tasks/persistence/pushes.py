"""What surrounds the steps of asynchronous rounds: turns, the server's rounds, and how they are kept."""

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
"""One of the updates that were pushed together, by its place among them."""

Due = tuple[int, InFlight, Outcome, Ref | int | None]
"""A map to run: whose, what is in flight, the version that was fetched, and what the partition carries.

The last is its push before, else the round whose update has it, None for nothing.
"""


def make_pushes(job: Job, data: Sequence[Partition], dues: Sequence[Due], again: Again = here) -> list[Pushed]:
    """What partitions of a block with these examples push at their turns, one after the other."""
    return [_push_due(job, data, *due, again=again) for due in dues]


def _push_due(
    job: Job,
    data: Sequence[Partition],
    partition: int,
    item: InFlight,
    fetched: Outcome,
    before: Ref | int | None,
    again: Again,
) -> Pushed:
    examples = data[partition - _first(job, partition)]
    carry = read_carry(job, before, partition) if before is None or isinstance(before, int) else at(before).carry
    return make_push(job, fetched.state, item, partition, examples, carry, again)


def at(ref: Ref) -> Pushed:
    """The update itself."""
    pushed, place = ref
    return pushed[place]


def _first(job: Job, partition: int) -> int:
    """The first partition of the block that a partition is of."""
    return next(span.start for span in map(job.plan.span, range(job.plan.blocks)) if partition in span)


def make_push(
    job: Job,
    fetched: State,
    item: InFlight,
    partition: int,
    examples: Partition,
    carry: Mapping[str, Vectors],
    again: Again = here,
) -> Pushed:
    """What a partition pushes at its turn; it is kept when it has landed, since its round is known only then.

    Who raises takes the turn `again`.
    """
    started = time.perf_counter()
    map_it = partial(_map_checked, job, fetched, item, partition, examples, carry)
    mapped = map_it()
    if mapped.raised:
        mapped = again(map_it)
    record = record_of(mapped, time.perf_counter() - started)
    began, kept = (item.push, item.version), Update({}, carry=carried(job.work, item, carry))
    return Pushed(partition, mapped.update, record, kept, began, job.work.code)


def _map_checked(job: Job, *turn: Any) -> Mapped:
    check_machine(job)
    return map_version(job.work, *turn)


def serve_rounds(
    job: Job, before: Outcome, rounds_taken: Sequence[ServerRound], pushed: Sequence[Sequence[Ref]]
) -> Outcome:
    """The outcome of several rounds, from what was pushed in each."""
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
    """Serve rounds again from the first one on, and keep each; ends early where a commit says stop.

    `last` is the last round of the window.
    """
    outcome, commits = read_outcome(job, first - 1), list[Commit]()
    for taken_in, refs, scores in zip(rounds_taken, pushed, tallies, strict=True):
        updates = list(map(at, refs))
        outcome = serve(job.work, outcome, taken_in, updates)
        previous, closing = commits[-1] if commits else None, outcome.state.round == last
        commits.append(commit_pushes(job, outcome, updates, scores, previous, closing))
        if commits[-1].stop:
            break
    remember(job.attempt.open(), outcome)
    return commits


def commit_pushes(
    job: Job,
    after: Outcome,
    pushed: Sequence[Pushed],
    tallies: Sequence[Sequence[Tally]],
    previous: Commit | None,
    closing: bool,
) -> Commit:
    """Keep the updates that landed in a round and the state after it, and make the round exist.

    `closing` is as in `commit_round`.
    """
    updates = {each.partition: each.update for each in pushed}
    return commit_round(job, after, tallies, previous, closing, updates)
