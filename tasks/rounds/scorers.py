"""What rounds score: a list of scorers, each of which has its examples and says what the numbers are called."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

from roundweave.storage.errors import DataError, cut
from roundweave.tasks.data.description import CallEach, Description, combine
from roundweave.tasks.data.loading import AnyExamples, Scored
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.rounds.scoring import Tally, score

Row = Mapping[str, float]
"""Numbers by name."""


@dataclass(frozen=True)
class Scorer:
    """Scores what a run holds out, which is the score of a round. A subclass scores something else beside that.

    The numbers of such a one are named after those of the round, by which they are ranked and shown: ``own_loss``
    is a loss, `prefix` being ``own_``. If `own`, it scores the network that a partition carries, where that
    carries one.
    """

    prefix: ClassVar[str] = ""
    own: ClassVar[bool] = False

    @property
    def adds(self) -> tuple[str, ...]:
        """What the names of the numbers begin with that it adds to the score of the round."""
        return (self.prefix,) if self.prefix else ()

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


WORST = 0.1
"""The share of partitions whose scores are the worst ones: those with the highest losses."""


@dataclass(frozen=True)
class OwnExamples(Scorer):
    """Scores what each partition holds out for itself, and how unequal these scores are.

    That is of the loss and of each score: the mean over the worst tenth of the partitions, and the standard
    deviation over all, by which Li et al. 2020 (q-FFL), section 4, measure fairness.
    """

    prefix: ClassVar[str] = "own_"
    own: ClassVar[bool] = True
    adds = ("worst_", "spread_")

    def part(self, run: Partitions, number: int, partition: int, place: int, scorers: int) -> AnyExamples:
        return run.own_part(partition, number)

    def judge(self, objective: Objective, tallies: Sequence[Tally], threads: int) -> tuple[Row, Mapping[int, Row]]:
        of = attrgetter("partition")
        scored = {p: score(objective, [*mine], threads) for p, mine in groupby(sorted(tallies, key=of), of)}
        sound = {p: each for p, each in scored.items() if each is not None and math.isfinite(each.loss)}
        ordered = sorted((each.numbers for each in sound.values()), key=lambda row: -row["loss"])
        worst = ordered[: math.ceil(WORST * len(ordered))]
        summary: dict[str, float] = {}
        for name in dict.fromkeys(name for row in ordered for name in row):
            values, worst_values = ([row[name] for row in of if name in row] for of in (ordered, worst))
            summary |= {f"worst_{name}": statistics.fmean(worst_values)} if worst_values else {}
            summary[f"spread_{name}"] = statistics.pstdev(values)
        rows = {p: {f"{self.prefix}{name}": value for name, value in s.row().items()} for p, s in sound.items()}
        return summary, rows


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
