"""Reduces stored rounds again, without training: with another reduce or apply, or without some partitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roundweave.storage.rounds.commits import Score
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import state_digest, tensor_digests
from roundweave.tasks.algorithms.applies.optimizers import kept_memory
from roundweave.tasks.data.description import CallEach, gather_here
from roundweave.tasks.rounds.guard import NOTHING
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.persistence.committing import score_again
from roundweave.tasks.rounds.persistence.outcomes import outcome_of, reduce_again, supply
from roundweave.tasks.rounds.steps import Outcome

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recombining:
    """The rounds of the run at `store` to reduce again, `without` the updates of some partitions.

    `work` has the parts to reduce and apply with. `recorded` is the work that made the rounds. It computes states
    that are not stored.
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
        """Return all scores by name; the names of the recorded state's scores end in ``_before``."""
        new, old = _numbers(self.score), _numbers(self.original)
        row: dict[str, Any] = {"round": self.round}
        for name in {**old, **new}:
            row |= {name: new.get(name), f"{name}_before": old.get(name)}
        return row | {"identical": self.identical, "digest": self.digest}


@dataclass(frozen=True)
class Recombination:
    """Rounds of a run that were reduced again, each from the recorded state before it.

    `saved` is the new run that begins with the state after one of them, or None.
    """

    run: str
    rounds: tuple[RecombinedRound, ...]
    saved: str | None = None

    def summary(self) -> dict[str, Any]:
        """Return all results, as values for JSON."""
        return {"run": self.run, "rounds": [round.row() for round in self.rounds], "saved": self.saved}

    def table(self) -> pd.DataFrame:
        """Return losses and scores by round, beside the recorded ones: ``loss``, ``loss_before`` and so on."""
        import pandas as pd

        return pd.DataFrame([round.row() for round in self.rounds]).set_index("round")


def recombine_stored(subject: Recombining, number: int, gather: CallEach = gather_here) -> RecombinedRound:
    """Reduce the round at index `number` of the subject's rounds again, and score it. Nothing is written.

    `gather` calls a function with numbers of partitions, where their examples lie.
    """
    store, work, round = _store(subject), subject.work, subject.rounds[number]
    commit = store.log.read(round)
    after = recombined_outcome(subject, number)
    original = commit.score or score_again(work, outcome_of(subject.recorded, store, round), gather, store)
    digest = state_digest(tensor_digests(after.state.named(work.objective.layout)), round)
    return RecombinedRound(round, digest, commit.state, score_again(work, after, gather, store), original)


def recombined_outcome(subject: Recombining, number: int) -> Outcome:
    """Reduce and apply the round at index `number` again. Updates that were refused stay refused."""
    store, round = _store(subject), subject.rounds[number]
    before, commit = outcome_of(subject.recorded, store, round - 1), store.log.read(round)
    memory = kept_memory(subject.work.algorithm.apply, before.state)
    before = replace(before, state=replace(before.state, memory=memory))
    accepted = {*commit.accepted} - subject.without
    updates = {p: store.tensors.read_update(commit, p) if p in accepted else NOTHING for p in commit.updates}
    return reduce_again(subject.work, before, commit, updates, subject.without)


def _store(subject: Recombining) -> RoundStore:
    return supply(subject.recorded, RoundStore(subject.store))


def _numbers(score: Score | None) -> dict[str, float]:
    return {} if score is None else score.numbers
