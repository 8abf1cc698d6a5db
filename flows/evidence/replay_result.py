"""The result of a replay, for people, programs and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import listed
from tasks.evidence.results import RoundResult, difference_as_json

IDENTICAL, DIFFERS, KEY_DIFFERS = 0, 1, 3
"""Exit codes: all rounds are identical; one differs and the key is the same; one differs and so does the key."""


@dataclass(frozen=True)
class Replay:
    """The results of replayed rounds of a run, and the parts of the key that have changed since.

    `key` describes each changed part by its name (fingerprint, code, data, versions); equal parts are left out.
    """

    run: str
    key: Mapping[str, str]
    results: tuple[RoundResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every round that could be replayed has the bits that were committed."""
        return not self.differing

    @property
    def replayed(self) -> list[int]:
        """The rounds that could be replayed."""
        return [result.round for result in self.results if result.lacking is None]

    @property
    def differing(self) -> list[RoundResult]:
        """The results of rounds that differ from the committed ones."""
        return [result for result in self.results if result.difference is not None]

    @property
    def lacking(self) -> list[RoundResult]:
        """The results of rounds that could not be replayed, since something that they need is no longer stored."""
        return [result for result in self.results if result.lacking is not None]

    @property
    def not_mapped(self) -> str:
        """A line about maps that raised an error in training and are not run again; empty if there are none."""
        rounds = listed(result.round for result in self.results if result.raised)
        partitions = listed(partition for result in self.results for partition in result.raised)
        return f"not mapped again: partition {partitions} in round {rounds}, as it had raised" if rounds else ""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return IDENTICAL if self.identical else KEY_DIFFERS if self.key else DIFFERS

    def summary(self) -> dict[str, Any]:
        """The result as a JSON object, with each round's status and first differing tensor."""
        rounds = [_row(result) for result in self.results]
        return {"run": self.run, "identical": self.identical, "key": dict(self.key), "rounds": rounds}

    def __str__(self) -> str:
        equal = len(self.replayed) - len(self.differing)
        parts = [f"{self.run}: {equal} of {len(self.replayed)} rounds replayed are bit-identical"]
        parts += [str(result) for result in self.differing[:1]]
        parts += [f"not replayed: round {listed(result.round for result in self.lacking)}"] if self.lacking else []
        parts += [self.not_mapped] if self.not_mapped else []
        parts += [f"{name} differs: {what}" for name, what in self.key.items()]
        return "; ".join(parts)


def _row(result: RoundResult) -> dict[str, Any]:
    difference = result.difference
    return {
        "round": result.round,
        "status": result.status,
        "differs": difference and difference.path,
        "partition": difference and difference.partition,
        "largest": difference and difference_as_json(difference.largest),
        "said": difference.said if difference else result.said,
    }
