"""What decides the bits is set inside and given back outside."""

from __future__ import annotations

import hashlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch

from roundweave.tasks.numerics.pinning import derive_seed, generators_kept, lent, pinned


def test_a_seed_is_the_first_63_bits_of_sha256_of_the_parts() -> None:
    digest = hashlib.sha256(b"0,model").hexdigest()
    assert derive_seed(0, "model") == int(digest[:16], 16) // 2
    assert 0 <= derive_seed(1, 2, 3) < 2**63
    assert derive_seed(1, 23) != derive_seed(12, 3)


def settings_now() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.random.get_rng_state().tolist(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        random.getstate(),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_once_the_pin_is_out(fails: bool) -> None:
    torch.manual_seed(5)
    before = settings_now()
    with suppress(ZeroDivisionError), pinned(1, threads=torch.get_num_threads() + 1):
        torch.rand(3)
        torch.manual_seed(9)
        np.random.rand(3)
        random.random()
        assert all(now != then for now, then in zip(settings_now(), before, strict=True))
        if fails:
            raise ZeroDivisionError
    assert settings_now() == before


def test_inside_the_pin_seed_threads_determinism_and_memory_are_set() -> None:
    def drawn(seed: int) -> list[float]:
        with pinned(seed, threads=1):
            assert torch.get_num_threads() == 1
            assert torch.are_deterministic_algorithms_enabled()
            return torch.rand(3).tolist()

    assert drawn(1) == drawn(1) == torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
    assert drawn(1) != drawn(2)
    with pinned(0, threads=1, fill=True):
        assert torch.empty(5).isnan().all()
    with pinned(0, 1), pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))


@pytest.mark.parametrize("draw", [lambda: np.random.rand(3).tolist(), random.random])
def test_inside_the_pin_numpys_and_pythons_generators_are_seeded(draw) -> None:
    def drawn(seed: int) -> object:
        draw()
        with pinned(seed, threads=1):
            return draw()

    assert drawn(1) == drawn(1)
    # All 63 bits of a seed count.
    assert len({str(drawn(seed)) for seed in (0, 1, 2, 1 << 32, 1 << 62)}) == 5


def drawn_by_torch(seed: int) -> list[float]:
    return torch.rand(2000, generator=torch.Generator().manual_seed(seed)).tolist()


def test_one_thread_at_a_time_is_pinned() -> None:
    """Two threads draw in turns as far as they are let: each draws what it would draw alone."""
    met = threading.Barrier(2)

    def draw(seed: int) -> list[float]:
        met.wait()
        with pinned(seed, threads=1):
            return [torch.rand(1).item() for _ in range(2000)]

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(draw, (1, 2))] == [drawn_by_torch(1), drawn_by_torch(2)]


def drawn_by_python() -> list[object]:
    """Numbers of every kind of function of `random`: of its class, bound to it, and with a memory of its own."""
    drawn: list[object] = []
    for _ in range(50):
        drawn += [random.random(), random.gauss(0, 1), random.randrange(10**30), random.getrandbits(70)]
        drawn += [random.sample(range(50), 9), random.betavariate(1, 2), random.randbytes(5)]
    return drawn


def disturb(ended: threading.Event) -> None:
    while not ended.is_set():
        random.random(), random.gauss(0, 1), random.randrange(9), random.getrandbits(3), random.seed(4)


def test_other_threads_neither_draw_from_nor_seed_pythons_generator_while_one_is_pinned() -> None:
    with pinned(3, threads=1):
        expected, ended = drawn_by_python(), threading.Event()
    random.seed(3)
    assert drawn_by_python() == expected, "as Python's own"
    threads = [threading.Thread(target=disturb, args=(ended,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            with pinned(3, threads=1):
                with pinned(5, threads=1):
                    random.gauss(0, 1)
                assert drawn_by_python() == expected
                random.seed(3)
                assert drawn_by_python() == expected, "a user's transform may seed it"
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_another_threads_draws_are_no_part_of_the_state_that_returns() -> None:
    random.seed(5)
    expected = random.Random(5).gauss(0, 1)
    with pinned(1, threads=1), ThreadPoolExecutor(1) as pool:
        assert pool.submit(random.gauss, 0, 1).result() != expected
        assert len({pool.submit(random.random).result() for _ in range(9)}) == 9
    assert random.gauss(0, 1) == expected


def test_threads_to_which_a_pin_is_lent_draw_from_it() -> None:
    def draw() -> float:
        with lent():
            return random.random()

    with pinned(1, threads=1), ThreadPoolExecutor(1) as pool:
        alone = random.Random(1)
        assert [pool.submit(draw).result(), random.random()] == [alone.random(), alone.random()]


def test_a_pin_within_a_pin_gives_the_outer_one_back() -> None:
    with pinned(1, threads=1):
        torch.rand(2)
        with pinned(2, threads=2):
            torch.rand(100)
        assert torch.get_num_threads() == 1
        inner = torch.rand(1)
    with pinned(1, threads=1):
        torch.rand(2)
        assert torch.equal(torch.rand(1), inner)


@pytest.mark.parametrize("fails", [False, True])
def test_where_generators_are_kept_pins_give_the_same_and_the_callers_return(fails: bool) -> None:
    def drawn(seed: int) -> list[float]:
        with pinned(seed, 1):
            first = torch.rand(1).item(), np.random.rand(), random.random()
            with generators_kept(), pinned(9, 1), pinned(8, 1):
                torch.rand(3), np.random.rand(3), random.random()
            return [*first, torch.rand(1).item(), np.random.rand(), random.random()]

    alone, before = [drawn(1), drawn(2)], settings_now()
    with suppress(ZeroDivisionError), generators_kept(), generators_kept():
        assert [drawn(1), drawn(2)] == alone
        if fails:
            raise ZeroDivisionError
    assert settings_now() == before


def test_kept_generators_return_while_no_other_thread_is_pinned() -> None:
    pins, drawn = threading.Event(), list[float]()

    def draw() -> None:
        with pinned(1, threads=1):
            pins.set()
            drawn.extend(torch.rand(1).item() for _ in range(2000))

    thread = threading.Thread(target=draw)
    with generators_kept():
        thread.start()
        pins.wait()
    thread.join()
    assert drawn == drawn_by_torch(1)
