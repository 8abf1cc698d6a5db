"""What a replay has found, for people, machines and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import listed
from tasks.evidence.verdicts import Verdict, difference_as_json

IDENTICAL, DIFFERS, KEY_DIFFERS = 0, 1, 3
"""Exit codes: all is identical; something differs, though the key is the same; it differs, and so does the key."""


@dataclass(frozen=True)
class Replay:
    """The verdicts on the rounds of a run, and what of the key is not as it was when they were made.

    `key` says by name (fingerprint, code, data, versions) what differs; what is the same is left out.
    """

    run: str
    key: Mapping[str, str]
    verdicts: tuple[Verdict, ...]

    @property
    def identical(self) -> bool:
        """Whether every round that could be replayed has the bits that were committed."""
        return not self.differing

    @property
    def replayed(self) -> list[int]:
        """The rounds that could be replayed."""
        return [verdict.round for verdict in self.verdicts if verdict.lacking is None]

    @property
    def differing(self) -> list[Verdict]:
        """The verdicts on rounds that are not as they were committed."""
        return [verdict for verdict in self.verdicts if verdict.difference is not None]

    @property
    def lacking(self) -> list[Verdict]:
        """The verdicts on rounds that could not be replayed, since something of them is no longer stored."""
        return [verdict for verdict in self.verdicts if verdict.lacking is not None]

    @property
    def not_mapped(self) -> str:
        """Of which rounds maps were left out that had raised, in a line; empty where there are none."""
        rounds = listed(verdict.round for verdict in self.verdicts if verdict.raised)
        partitions = listed(partition for verdict in self.verdicts for partition in verdict.raised)
        return f"not mapped again: partition {partitions} in round {rounds}, as it had raised" if rounds else ""

    @property
    def exit_code(self) -> int:
        """How the command ends."""
        return IDENTICAL if self.identical else KEY_DIFFERS if self.key else DIFFERS

    def rows(self) -> list[dict[str, Any]]:
        """A row for each round: what became of it, and the first tensor that differs."""
        return [_row(verdict) for verdict in self.verdicts]

    def summary(self) -> dict[str, Any]:
        """What machines want to know."""
        return {"run": self.run, "identical": self.identical, "key": dict(self.key), "rounds": self.rows()}

    def __str__(self) -> str:
        equal = len(self.replayed) - len(self.differing)
        told = [f"{self.run}: {equal} of {len(self.replayed)} rounds replayed are bit-identical"]
        told += [str(verdict) for verdict in self.differing[:1]]
        told += [f"not replayed: round {listed(v.round for v in self.lacking)}"] if self.lacking else []
        told += [self.not_mapped] if self.not_mapped else []
        told += [f"{name} differs: {what}" for name, what in self.key.items()]
        return "; ".join(told)


def _row(verdict: Verdict) -> dict[str, Any]:
    difference = verdict.difference
    return {
        "round": verdict.round,
        "status": verdict.status,
        "differs": difference and difference.path,
        "partition": None if difference is None else difference.partition,
        "largest": None if difference is None else difference_as_json(difference.largest),
        "said": difference.said if difference else verdict.said,
    }
