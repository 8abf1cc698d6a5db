"""What rounds score: a list of scorers. Each has its examples, and names for its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundweave.storage.errors import DataError, cut
from roundweave.tasks.data.description import CallEach, Description, combine
from roundweave.tasks.data.loading import AnyExamples, Scored
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.rounds.scoring import Tally

Row = Mapping[str, float]
"""Numbers by name."""


@dataclass(frozen=True)
class Scorer:
    """Scores what a run holds out, which is the score of a round. A subclass scores something else besides.

    The numbers of a subclass are named after those of the round, by which they are ranked and shown: ``own_loss``
    is a loss. Names of partitions' numbers begin with the `prefix`, and names of numbers beside the round's with
    one of `adds`. If `own`, the scorer scores the network that a partition carries, if it carries one.
    """

    prefix: ClassVar[str] = ""
    adds: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[bool] = False

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The entries of a run's record about data of this scorer's own, such as their digest."""
        return {}

    def described(self, objective: Objective, run: Partitions, known: Description, gather: CallEach) -> Scorer:
        """Return the scorer with its own data described.

        A run's examples are `known`, and its network is tried. `gather` calls a function with numbers where
        examples lie.
        """
        return self

    def part(self, run: Partitions, number: int, partition: int, place: int, scorers: int) -> AnyExamples:
        """Return what a partition of a run scores under the split of this number, at its `place` among so many."""
        return run.held_out_part(partition, place, scorers)

    def judge(self, objective: Objective, tallies: Sequence[Tally], threads: int) -> tuple[Row, Mapping[int, Row]]:
        """Return the numbers beside the round's score, and those of each partition, from its tallies in order."""
        return {}, {}


def parts_of(
    scorers: Sequence[Scorer], run: Partitions, number: int, partition: int, place: int, among: int
) -> Scored:
    """Return what a partition of a run scores for each scorer; see `Scorer.part`."""
    return tuple(scorer.part(run, number, partition, place, among) for scorer in scorers)


def described_with(
    known: Description, scored: Partitions, called: Callable[[int], str], gather: CallEach
) -> tuple[Partitions, Description, Description]:
    """Describe other data with labels and columns as in training, alone and joined with the training examples.

    `known` describes the training examples. `called` gives the names in messages of the training examples, 0, and
    of the other data, 1. `gather` calls a function with numbers where the examples lie. Raises `DataError` if the
    data are not alike.
    """
    scored = replace(scored, source=scored.source.arranged(known.meaning))
    scored, descriptions = scored.described_by(gather)
    if reason := next((each.unreadable for each in descriptions if each.unreadable), ""):
        raise DataError(reason)
    padded = scored.loading.collate is not None
    own = combine(descriptions, scored.called, padded=padded)
    if unknown := own.class_names[len(known.class_names) :] if known.class_names else ():
        raise DataError(f"label {unknown[0]!r} is unknown; known are {', '.join(cut(known.class_names))}")
    both = replace(combine([known, own], called, padded=padded), held_out=own.held_out)
    digests = tuple(each.digest for each in descriptions)
    return replace(scored, shared=bool(own.shared), digests=digests), own, both
