"""Ranks that work on one partition together, and how they all run in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from storage.errors import RoundweaveError
from tasks.compute.communicator import Communicator
from tasks.numerics import Generators, generators, lent, set_generators

T = TypeVar("T")


def in_turn(ranks: int, function: Callable[[Communicator], T]) -> list[T]:
    """What each rank gives, all of them in this process; raises the first one's error.

    One rank runs at a time, in their order and from one exchange to the next, each with generators as they
    would be in a process of its own: so the bits are the same wherever the ranks are.
    """
    turns = _Turns(ranks)
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            turns.enter(rank)
            with turns.settled():
                results[rank] = function(_InTurn(turns, rank))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for all
            turns.end(rank, error)
        else:
            turns.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:
        turns.end(0, error)
        raise
    turns.finish()
    return results


def _globals() -> tuple[Generators, int]:
    """What is of the process, and each rank has for itself: generators, and whether bits are to be the same."""
    return generators(), torch.get_deterministic_debug_mode()


def _set_globals(state: tuple[Generators, int]) -> None:
    set_generators(state[0])
    torch.set_deterministic_debug_mode(state[1])


class _Ended(Exception):
    """Another rank has failed."""


class _Turns:
    """Whose turn it is, what the ranks have told each other, and the global state of each."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.error: BaseException | None = None
        self._condition = threading.Condition()
        self._turn = 0
        self._told: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self._globals = [_globals()] * ranks
        self._settings = torch.is_grad_enabled(), torch.get_num_threads()
        self._done: set[int] = set()

    def exchange(self, rank: int, number: int, value: Any) -> list[Any]:
        """Tell a value, the rank's so-manieth, and have those of all."""
        self._told[rank][number] = value
        self._told[rank].pop(number - 2, None)
        self.leave(rank)
        self.enter(rank)
        if any(number not in told for told in self._told):
            raise RoundweaveError(f"rank {rank} waits for ranks that have ended; do all take the same steps?")
        return [told[number] for told in self._told]

    def enter(self, rank: int) -> None:
        """Wait for this rank's turn."""
        with self._condition:
            self._condition.wait_for(lambda: self._turn == rank or self.error is not None)
        if self.error is not None:
            raise _Ended
        _set_globals(self._globals[rank])

    def leave(self, rank: int) -> None:
        """The turn of the next rank that has not ended."""
        self._globals[rank] = _globals()
        with self._condition:
            after = [(rank + step) % self.ranks for step in range(1, self.ranks + 1)]
            self._turn = next((r for r in after if r not in self._done), -1)
            self._condition.notify_all()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Within, torch's settings that each thread has for itself are those of the thread that waits for all."""
        grad, threads = self._settings
        with lent(), torch.set_grad_enabled(grad):
            torch.set_num_threads(threads)
            yield

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """The rank has ended; with an error all others do."""
        self._done.add(rank)
        if error is not None and not isinstance(error, _Ended):
            self.error = self.error or error
        self.leave(rank)

    def finish(self) -> None:
        """Leave global state as the first rank has it; raises the first error."""
        if self.error is not None:
            raise self.error
        _set_globals(self._globals[0])


class _InTurn:
    """A rank whose group is all in one process."""

    def __init__(self, turns: _Turns, rank: int) -> None:
        self.rank, self.ranks, self.sent = rank, turns.ranks, 0
        self._turns, self._number = turns, 0

    def all_gather(self, value: Any) -> list[Any]:
        self._number += 1
        return self._turns.exchange(self.rank, self._number, value)

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        return [values[self.rank] for values in self.all_gather(values)]
