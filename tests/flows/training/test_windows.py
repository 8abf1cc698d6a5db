"""Rounds that Prefect sees as one task are done in windows, and what may go goes between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from roundweave.flows.training.hooks import Hooks
from roundweave.flows.training.rounds import run_rounds


class Recorded:
    """An executor and a prepared run that write down what is asked of them."""

    job = SimpleNamespace(attempt=SimpleNamespace(rounds=100, stop_reason=lambda commit: None))

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def run(self, job: Any, first: int, last: int) -> list[Any]:
        self.asked.append((first, last))
        return [SimpleNamespace(round=round, seconds=1 / round) for round in range(first, last + 1)]

    sampler = None

    def job_of(self, *_: int) -> Any:
        return self.job

    def window(self, seconds: float) -> int:
        return round(1 / seconds)

    def compare(self, first: int, commit: Any) -> None:
        pass

    def let_go(self, commit: Any) -> None:
        self.asked.append(commit.round)


def test_windows_are_as_long_as_the_last_round_makes_them_and_end_with_the_task() -> None:
    recorded: Any = Recorded()
    # A second has two rounds as the first was; as the third was, three; as the sixth was, six, but two are left.
    assert run_rounds(recorded, recorded, Hooks((), "", ""), 2, 8, 0.5).round == 8
    assert recorded.asked == [(2, 3), 3, (4, 6), 6, (7, 8), 8]
