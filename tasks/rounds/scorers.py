"""What rounds score: a list of scorers, each of which has its examples and says what the numbers are called."""

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
    """Scores what a run holds out, which is the score of a round. A subclass scores something else beside that.

    The numbers of such a one are named after those of the round, by which they are ranked and shown: ``own_loss``
    is a loss. Names of partitions' numbers begin with the `prefix`, and of those beside the round's with what is
    in `adds`. If `own`, it scores the network that a partition carries, where that carries one.
    """

    prefix: ClassVar[str] = ""
    adds: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[bool] = False

    @property
    def recorded(self) -> Mapping[str, Any]:
        """What a run's record has of data that are this scorer's own, such as their digest."""
        return {}

    def described(self, objective: Objective, run: Partitions, known: Description, gather: CallEach) -> Scorer:
        """The scorer once a run's examples are `known`, and its network is tried, with data of its own described.

        `gather` calls a function with numbers where examples lie.
        """
        return self

    def part(self, run: Partitions, number: int, partition: int, place: int, scorers: int) -> AnyExamples:
        """What a partition of a run scores under the split of this number, at its `place` among so many."""
        return run.held_out_part(partition, place, scorers)

    def judge(self, objective: Objective, tallies: Sequence[Tally], threads: int) -> tuple[Row, Mapping[int, Row]]:
        """The numbers beside the score of the round, and those of each partition, from its tallies in order."""
        return {}, {}


def parts_of(
    scorers: Sequence[Scorer], run: Partitions, number: int, partition: int, place: int, among: int
) -> Scored:
    """What a partition of a run scores for each scorer; see `Scorer.part`."""
    return tuple(scorer.part(run, number, partition, place, among) for scorer in scorers)


def described_with(
    known: Description, scored: Partitions, called: Callable[[int], str], gather: CallEach
) -> tuple[Partitions, Description, Description]:
    """Other data with labels and columns as in training, their description, and that of the examples of both.

    `known` describes what was trained on, and `called` gives what messages call that, 0, and the other data, 1.
    `gather` calls a function with numbers where the examples lie. Raises `DataError` if they are not alike.
    """
    scored = replace(scored, source=scored.source.arranged(known.meaning))
    scored, descriptions = scored.described_by(gather)
    if reason := next((each.unreadable for each in descriptions if each.unreadable), ""):
        raise DataError(reason)
    padded = scored.loading.collate is not None
    own = combine(descriptions, scored.called, padded=padded)
    if unknown := own.class_names[len(known.class_names) :] if known.class_names else ():
        raise DataError(f"label {unknown[0]!r} is none of those known: {', '.join(cut(known.class_names))}")
    both = replace(combine([known, own], called, padded=padded), held_out=own.held_out)
    digests = tuple(each.digest for each in descriptions)
    return replace(scored, shared=bool(own.shared), digests=digests), own, both
