"""The scorer of what each partition holds out for itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import ClassVar

from roundweave.tasks.data.loading import AnyExamples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.rounds.scorers import Row, Scorer
from roundweave.tasks.rounds.scoring import Tally, score

WORST = 0.1
"""The share of partitions whose scores are the worst ones: those with the highest losses."""


@dataclass(frozen=True)
class OwnExamples(Scorer):
    """Scores what each partition holds out for itself, and how unequal these scores are.

    That is of the loss and of each score: the mean over the worst tenth of the partitions, and the standard
    deviation over all, by which Li et al. 2020 (q-FFL), section 4, measure fairness.
    """

    prefix: ClassVar[str] = "own_"
    adds: ClassVar[tuple[str, ...]] = ("worst_", "spread_")
    own: ClassVar[bool] = True

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
