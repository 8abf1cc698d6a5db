"""The scorer of validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from roundweave.storage.errors import UsageError
from roundweave.tasks.data.description import CallEach, Description
from roundweave.tasks.data.loading import AnyExamples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.rounds.scorers import Row, Scorer, described_with
from roundweave.tasks.rounds.scoring import Tally, score


@dataclass(frozen=True)
class Validated(Scorer):
    """Scores all of so many `examples` of other `data`, which are one partition and have this digest."""

    data: Partitions
    examples: int = 0
    digest: str = ""
    prefix: ClassVar[str] = "validation_"
    adds: ClassVar[tuple[str, ...]] = ("validation_",)

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The digest of the data, and how many examples these are."""
        return {"validation": self.digest, "validated": self.examples}

    def described(self, objective: Objective, run: Partitions, known: Description, gather: CallEach) -> Scorer:
        """The scorer with its data described, on which the network is tried."""
        if not known.held_out:
            raise UsageError("validation needs held-out examples, too; give held_out, or leave validation out")
        data, own, both = described_with(known, self.data, ("the data", "validation").__getitem__, gather)
        gather(partial(check_fit, objective, data, both), range(1))
        return Validated(replace(data, sampler=run.sampler), own.held_out, own.digest)

    def part(self, run: Partitions, number: int, partition: int, place: int, scorers: int) -> AnyExamples:
        """The partition's part of the data."""
        return self.data.held_out_part(0, place, scorers)

    def judge(self, objective: Objective, tallies: Sequence[Tally], threads: int) -> tuple[Row, Mapping[int, Row]]:
        """The numbers of all examples; none where some are left out, as they would not compare."""
        scored = score(objective, tallies, threads)
        if scored is None or scored.left_out or scored.examples != self.examples:
            return {}, {}
        return {f"{self.prefix}{name}": value for name, value in scored.numbers.items()}, {}
