"""The outcome of a committed round: read if its state is stored, else recomputed from stored updates."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from roundweave.storage.errors import RoundFailed
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.pruned import has_updates, there
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import state_digest, tensor_digests
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.steps import BlockResult, Outcome, fold_block, reduce_apply

LEFT_OUT = "left out when the round was reduced again"
"""The reason to refuse a sound update, when a round is reduced again without its partition."""

MOST = 3
"""How many recomputed outcomes a process remembers, so that going through rounds in order takes one apply each."""


REMEMBERED: deque[tuple[str, Outcome]] = deque(maxlen=MOST)
"""The last recomputed outcomes, with the chain of their round's record, which covers all rounds before it."""


def recomputed(work: Work, store: RoundStore, round: int) -> Outcome:
    """The outcome of a committed round, verified, if needed recomputed by the work that made it.

    If its state is not stored, the stored updates of all rounds since the last stored state are reduced and
    applied again. Raises `RoundMissing`, `RoundPruned` or `StoreDamaged` if something of this cannot be read, and
    `RoundFailed` if the result has another digest than the commit says.
    """
    nearest, outcome = _nearest(store, round)
    for later in range(nearest + 1, round + 1):
        outcome = _again(work, store, outcome, store.log.read(later))
        REMEMBERED.append((store.log.chain(later), outcome))
    return outcome


def _nearest(store: RoundStore, round: int) -> tuple[int, Outcome]:
    """The last round up to this one whose state is stored or remembered, and its outcome."""
    pruned = store.tensors.pruned()
    for earlier in range(round, 0, -1):
        if there(store.log, pruned, earlier):
            return earlier, _read(store, earlier)
        if outcome := dict(list(REMEMBERED)).get(store.log.chain(earlier)):
            return earlier, outcome
        if not has_updates(store.log, pruned, earlier):
            return round, _read(store, round)  # this raises an error that says what is stored
    return 0, _read(store, 0)


def _read(store: RoundStore, round: int) -> Outcome:
    commit = store.log.read(round)
    return Outcome(store.tensors.read_state(commit), carry_from=commit.carry_from, server=commit.server)


def _again(work: Work, store: RoundStore, before: Outcome, commit: Commit) -> Outcome:
    """Recompute the outcome of a round from that of the round before and its stored updates."""
    state = reduce_again(work, store, before, commit).state
    if state_digest(tensor_digests(state.named(work.objective.layout)), state.round) != commit.state:
        raise RoundFailed(
            f"the state of round {commit.round} of {store.place} is not stored, and its updates give another one "
            "on this machine and with this code; go on where it was made"
        )
    return Outcome(state, carry_from=commit.carry_from, server=commit.server)


def reduce_again(
    work: Work, store: RoundStore, before: Outcome, commit: Commit, without: frozenset[int] = frozenset()
) -> Outcome:
    """Reduce and apply the stored updates of a recorded round again, `without` those of some partitions.

    `before` is the outcome of the round before. Updates that were refused stay refused.
    """
    records = {
        p: replace(record, refused=record.refused or (LEFT_OUT if p in without else None), match=None)
        for p, record in commit.updates.items()
    }
    updates = {p: None if r.refused else store.tensors.read_update(commit, p) for p, r in records.items()}
    if commit.server is None:
        nodes = fold_block(work, before.state.round + 1, [(0, work.partitions.split.partitions)], updates)
        return reduce_apply(work, before, [BlockResult(nodes, records, work.code)])
    from roundweave.tasks.rounds.asynchronous.ledger import recorded_round
    from roundweave.tasks.rounds.asynchronous.steps import recorded_push, serve, server_before

    taken_in = recorded_round(server_before(work, before.server), commit)
    pushed = [recorded_push(work, p, records[p], updates[p] or NOTHING) for p in taken_in.partitions]
    return serve(work, before, taken_in, pushed)
