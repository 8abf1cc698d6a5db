"""Reduce stored rounds again, without training: with another reduce or apply, or without some partitions."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from roundweave.storage.rounds.commits import Commit, InFlight, Score, ServerRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import NOTHING_KEPT, state_digest, tensor_digests
from roundweave.tasks.algorithms.applies.memory import kept_memory
from roundweave.tasks.data.loading import BlockExamples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.exchanging import own_params
from roundweave.tasks.rounds.persistence.recomputing import recomputed, reduce_again
from roundweave.tasks.rounds.steps import Outcome, judge_round, score_block

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recombining:
    """Which rounds of the run stored at `store` are to be reduced again, `without` the updates of some partitions.

    `work` has the parts to reduce and apply with. `recorded` is the work that made the rounds; it recomputes
    states that are not stored.
    """

    work: Work
    recorded: Work
    store: str
    rounds: tuple[int, ...]
    without: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RecombinedRound:
    """A round that was reduced again: the digests of the new and the recorded state, and the scores of both."""

    round: int
    digest: str
    recorded: str
    score: Score | None
    original: Score | None

    @property
    def identical(self) -> bool:
        """Whether the new state has the recorded bits."""
        return self.digest == self.recorded

    def row(self) -> dict[str, Any]:
        """The scores by name, with those of the recorded state under names that end in ``_before``."""
        new, old = _numbers(self.score), _numbers(self.original)
        row: dict[str, Any] = {"round": self.round}
        for name in {**old, **new}:
            row |= {name: new.get(name), f"{name}_before": old.get(name)}
        return row | {"identical": self.identical, "digest": self.digest}


@dataclass(frozen=True)
class Recombination:
    """Rounds of a run that were reduced again, each from the recorded state before it.

    `saved` is the new run that begins with one of them, None if there is none.
    """

    run: str
    rounds: tuple[RecombinedRound, ...]
    saved: str | None = None

    def summary(self) -> dict[str, Any]:
        """All results, as values for JSON."""
        return {"run": self.run, "rounds": [round.row() for round in self.rounds], "saved": self.saved}

    def table(self) -> pd.DataFrame:
        """Losses and scores by round, and those of the recorded states: ``loss``, ``loss_before`` and so on."""
        import pandas as pd

        return pd.DataFrame([round.row() for round in self.rounds]).set_index("round")


def recombine_stored(subject: Recombining, number: int) -> RecombinedRound:
    """Reduce the round at index `number` of the subject's rounds again, and score it. Nothing is written."""
    store, work, round = RoundStore(subject.store), subject.work, subject.rounds[number]
    commit = store.log.read(round)
    after = _recombine(subject, store, commit)
    original = commit.score or _score(work, store, recomputed(subject.recorded, store, round))
    digest = state_digest(tensor_digests(after.state.named(work.objective.layout)), round)
    return RecombinedRound(round, digest, commit.state, _score(work, store, after), original)


def persist_recombined(subject: Recombining, place: str, scored: Score | None, number: int) -> Commit:
    """Reduce the round at index `number` again, and commit it at `place` as round 1 of another run.

    Its stored updates are copied to the new run. `scored` is its score.
    """
    source, target, round = RoundStore(subject.store), RoundStore(place), subject.rounds[number]
    commit, partitions = source.log.read(round), subject.work.partitions
    after = _recombine(subject, source, commit)
    stored = sorted(p for p, record in commit.updates.items() if record.digest != NOTHING_KEPT)
    for _, shard in groupby(stored, lambda partition: partition // target.schema.shard):
        target.tensors.write_updates(1, {p: source.tensors.read_update(commit, p) for p in shard})
    target.tensors.write_matches(1, after.matches)
    if not partitions.source.partitioned:
        target.splits.write(subject.work.split(round), partitions.assignment)
    # In the new run all partitions have just fetched round 1: what was in flight began in the other run.
    server = after.server and ServerRecord(
        dict.fromkeys(after.server.in_flight, InFlight(push=2, version=1, steps=1)), steps=1
    )
    state = replace(after.state, round=1)
    target.tensors.write_state(state)
    described = replace(
        target.describe(state, "recombined", 0),
        updates={p: replace(record, arrival=None) for p, record in after.records.items()},
        server=server,
        carry_from={partition: int(source == round) for partition, source in after.carry_from.items()},
        split=commit.split,
        score=scored,
        best=scored.loss if scored else None,
        time=time.time(),
    )
    committed = target.commit(described)
    target.numbers.catch_up()
    return committed


def _recombine(subject: Recombining, store: RoundStore, commit: Commit) -> Outcome:
    """Reduce and apply a stored round again as the subject says. Updates that were refused stay refused."""
    before = recomputed(subject.recorded, store, commit.round - 1)
    memory = kept_memory(subject.work.algorithm.apply, before.state)
    before = replace(before, state=replace(before.state, memory=memory))
    return reduce_again(subject.work, store, before, commit, subject.without)


def _numbers(score: Score | None) -> dict[str, float]:
    return {} if score is None else {"loss": score.loss, **score.values}


def _score(work: Work, store: RoundStore, after: Outcome) -> Score | None:
    round = after.state.round
    # Every split holds out the same examples, but for those that partitions hold out themselves.
    split = work.split(round) if work.partitions.own_held_out else 0
    examples = _examples(work.partitions, split, work.cohort(round))
    return judge_round(work, round, score_block(work, after.state, examples, own_params(work, store, after)))[0]


@functools.lru_cache(maxsize=1)
def _examples(partitions: Partitions, split: int, cohort: tuple[int, ...] | None) -> BlockExamples:
    """The partitions of a cohort, or all, under the split of this number."""
    members = range(partitions.split.partitions) if cohort is None else cohort
    return {p: partitions.load(split, p, place, len(members)) for place, p in enumerate(members)}
