"""Run all ranks that share a network in one process: in threads, of which one runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import torch

from roundweave.storage.errors import RoundweaveError
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.numerics.pinning import Generators, generators, lent, set_generators

T = TypeVar("T")


def as_ranks(ranks: int, function: Callable[[Communicator], T]) -> list[T]:
    """Call a function as each rank, in this process, and return the results in their order.

    The function gets the rank's communicator. One rank runs at a time, in order, from one exchange to the next.
    Each has the random generators that it would have in a process of its own, so that the bits are the same as
    those of ranks in separate processes. Raises the first error of a rank.
    """
    schedule, contexts = _Schedule(ranks), [copy_context() for _ in range(ranks)]
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()

    def run(rank: int) -> Any:
        with lent(), torch.set_grad_enabled(grad):  # torch keeps these settings for each thread
            try:
                schedule.enter(rank)
                torch.set_num_threads(threads)
                return function(_Scheduled(schedule, rank))
            except BaseException as error:  # noqa: BLE001 - raised again below, when all ranks have ended
                schedule.error = schedule.error or error
            finally:
                schedule.end(rank)

    # The pool waits for its threads even after an interrupt, after which `Thread.join` may return too early.
    with ThreadPoolExecutor(ranks, "rank") as pool:
        try:
            results = list(pool.map(lambda context, rank: context.run(run, rank), contexts, range(ranks)))
        except BaseException as error:
            schedule.error = error
            schedule.end(0)
            raise
    if schedule.error is not None:
        raise schedule.error
    _set_globals(schedule.globals[0])
    return results


def _globals() -> tuple[Generators, int, bool]:
    """Global state of the process that each rank has for itself: generators, and the deterministic mode."""
    filling: Any = torch.utils.deterministic
    return generators(), torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory


def _set_globals(state: tuple[Generators, int, bool]) -> None:
    filling: Any = torch.utils.deterministic
    set_generators(state[0])
    torch.set_deterministic_debug_mode(state[1])
    filling.fill_uninitialized_memory = state[2]


class _Ended(Exception):
    """Ends a rank's thread because another rank has failed."""


class _Schedule:
    """Which rank may run, the values that ranks have sent, and the global state of each rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.error: BaseException | None = None
        self.globals = [_globals()] * ranks
        self._condition = threading.Condition()
        self._running = 0
        self._sent: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self._ended: set[int] = set()

    def exchange(self, rank: int, number: int, value: Any) -> list[Any]:
        """Send the rank's value in exchange `number`, and return the values of all ranks in their order."""
        self._sent[rank][number] = value
        self._sent[rank].pop(number - 2, None)
        self._leave(rank)
        self.enter(rank)
        if any(number not in sent for sent in self._sent):
            raise RoundweaveError(f"rank {rank} waits for ranks that have ended; do all take the same steps?")
        return [sent[number] for sent in self._sent]

    def enter(self, rank: int) -> None:
        """Wait until this rank may run, and set its global state."""
        with self._condition:
            self._condition.wait_for(lambda: self._running == rank or self.error is not None)
        if self.error is not None:
            raise _Ended
        _set_globals(self.globals[rank])

    def _leave(self, rank: int) -> None:
        """Save this rank's global state, and let the next rank run that has not ended."""
        self.globals[rank] = _globals()
        with self._condition:
            after = [(rank + step) % self.ranks for step in range(1, self.ranks + 1)]
            self._running = next((r for r in after if r not in self._ended), -1)
            self._condition.notify_all()

    def end(self, rank: int) -> None:
        """Note that a rank has ended. If there was an error, all others end, too."""
        self._ended.add(rank)
        self._leave(rank)


class _Scheduled:
    """The communicator of a rank whose whole group runs in one process."""

    def __init__(self, schedule: _Schedule, rank: int) -> None:
        self.rank, self.ranks, self.sent = rank, schedule.ranks, 0
        self._schedule, self._number = schedule, 0

    def all_gather(self, value: Any) -> list[Any]:
        self._number += 1
        return self._schedule.exchange(self.rank, self._number, value)

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        return [values[self.rank] for values in self.all_gather(values)]
