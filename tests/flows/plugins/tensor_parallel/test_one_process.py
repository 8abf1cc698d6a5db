"""Ranks in one process: one at a time, in their order, each with a generator of its own."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
from roundweave.storage.errors import RoundweaveError
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.numerics.pinning import generators, pinned, set_generators
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_each_has_what_all_have_told(ranks: int) -> None:
    def talk(group: Communicator) -> list[object]:
        return [list(group.all_gather((group.rank, exchange))) for exchange in range(4)]

    wanted = [[(rank, exchange) for rank in range(ranks)] for exchange in range(4)]
    assert as_ranks(ranks, talk) == [wanted] * ranks


def test_each_has_what_the_others_have_for_it() -> None:
    def talk(group: Communicator) -> list[object]:
        assert group.ranks == 3
        return list(group.scatter([f"{group.rank} to {other}" for other in range(3)]))

    assert as_ranks(3, talk) == [[f"{one} to {rank}" for one in range(3)] for rank in range(3)]


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("exchange", [0, 2])
def test_the_error_of_one_ends_all_and_tells_where_it_was(bad: int, exchange: int) -> None:
    ended: list[int] = []

    def fails_here(group: Communicator) -> None:
        try:
            for number in range(5):
                if (group.rank, number) == (bad, exchange):
                    raise ValueError("no")
                group.all_gather(None)
        finally:
            ended.append(group.rank)

    with pytest.raises(ValueError, match=r"^no$") as caught:
        as_ranks(3, fails_here)
    assert "fails_here" in "".join(traceback.format_tb(caught.tb))
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert set(ended) <= {0, 1, 2} and bad in ended


@pytest.mark.parametrize("short", [0, 1])
def test_a_rank_that_ends_before_the_others_is_an_error(short: int) -> None:
    def talk(group: Communicator) -> None:
        for _ in range(1 if group.rank == short else 2):
            group.all_gather(None)

    with pytest.raises(RoundweaveError, match="waits for ranks that have ended; do all take the same steps"):
        as_ranks(2, talk)


@pytest.mark.parametrize("around", [nullcontext, partial(pinned, 9, threads=1)])
@pytest.mark.parametrize("number", [lambda: torch.rand(()).item(), np.random.rand, random.random])
def test_each_rank_draws_as_it_would_in_a_process_of_its_own(number: Callable[[], float], around) -> None:
    def draw(group: Communicator) -> list[float]:
        drawn = []
        for _ in range(3):
            drawn.append(number())
            if group.rank == 1:
                number()
            group.all_gather(None)
        return drawn

    with around():
        before = generators()
        alone = [number() for _ in range(4)]
        set_generators(before)
        first, second, third = as_ranks(3, draw)
        assert first == third == alone[:3]
        assert second[0] == first[0] and second[1:] != first[1:]
        assert number() == alone[3], "goes on as the first rank would"


def test_ranks_may_pin_numerics_that_are_pinned_around_them() -> None:
    def draw(group: Communicator) -> list[float]:
        drawn = []
        for exchange in range(2):
            with pinned(exchange, threads=1):
                drawn.append(torch.rand(()).item())
                group.all_gather(None)
                drawn.append(torch.rand(()).item())
                assert torch.get_deterministic_debug_mode() == 2
        return drawn

    with pinned(9, threads=2):
        before = torch.get_rng_state()
        one, other = as_ranks(2, draw)
        assert torch.get_num_threads() == 2 and torch.get_deterministic_debug_mode() == 2
        assert torch.equal(torch.get_rng_state(), before)
    assert one == other
    assert as_ranks(2, draw) == [one, one]
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory, "as it was before"


def test_ranks_have_the_settings_of_the_thread_that_waits() -> None:
    def settings(group: Communicator) -> tuple[bool, int]:
        return torch.is_grad_enabled(), torch.get_num_threads()

    threads = torch.get_num_threads()
    with torch.no_grad():
        assert as_ranks(2, settings) == [(False, threads)] * 2
    assert as_ranks(2, settings) == [(True, threads)] * 2


INTERRUPTED = """
import signal
import sys
import threading
from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run behind a shell
main, exchanges = threading.main_thread(), int(sys.argv[1])
def talk(group):
    for exchange in range(10**9):
        if group.rank == 0 and exchange % 100_000 == exchanges:  # again, if it came right before a wait
            signal.pthread_kill(main.ident, signal.SIGINT)
        group.all_gather(None)
try:
    as_ranks(2, talk)
except KeyboardInterrupt:
    for thread in set(threading.enumerate()) - {main}:
        thread.join()
    print("interrupted")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("exchanges", [0, 1, 1000])  # with 0 not all ranks have begun yet
def test_an_interrupt_ends_all_ranks(exchanges: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(exchanges)]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert (ended.stdout, ended.returncode) == ("interrupted\n", 0)
