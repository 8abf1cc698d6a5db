"""Seeds, thread counts and deterministic algorithms, which are set while results are computed."""

from __future__ import annotations

import _random
import functools
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits from the SHA-256 of the parts, such as (run seed, round, partition)."""
    text = ",".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_lock = threading.RLock()
"""Held by the thread that has numerics pinned: generators and settings belong to the whole process."""


class _ThisThread(threading.local):
    """What is known of one thread.

    `lent`: another thread has the lock and waits for this one, which may therefore pin numerics without the lock.
    `kept`: `generators_kept` will restore the caller's generators, so that `pinned` need not.
    """

    lent = False
    kept = False


_this_thread = _ThisThread()


@contextmanager
def lent() -> Iterator[None]:
    """Let this thread pin numerics without the lock. The thread that has the lock must wait for it meanwhile."""
    _this_thread.lent = True
    try:
        yield
    finally:
        _this_thread.lent = False


def alone() -> AbstractContextManager[Any]:
    """A context in which no other thread pins numerics, or draws from Python's generator as this one sees it.

    It is the lock, unless another thread has lent it.
    """
    _set_apart()
    return nullcontext() if _this_thread.lent else _lock


_others = random.Random()
"""What Python's global generator is to other threads while one computes alone."""


def _apart(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Python's global generator that uses `_others` in all threads but the one that computes alone."""

    def called(generator: random.Random, *arguments: Any) -> Any:
        if not _lock.acquire(blocking=False):
            return method(generator if _this_thread.lent else _others, *arguments)
        try:
            return method(generator, *arguments)
        finally:
            _lock.release()

    return called


class _Apart(_random.Random):
    """The base of `random.Random`, of whose methods and attribute all functions of `random` are made."""

    random, getrandbits = _apart(_random.Random.random), _apart(_random.Random.getrandbits)
    getstate, setstate = _apart(_random.Random.getstate), _apart(_random.Random.setstate)
    seed = _apart(_random.Random.seed)
    gauss_next = property(
        _apart(lambda generator: generator.__dict__["gauss_next"]),
        _apart(lambda generator, value: generator.__dict__.update(gauss_next=value)),
    )


class _Global(random.Random, _Apart):
    """Python's global generator. Where one thread computes alone, others draw from another one.

    Such as those of a worker of Dask that send messages while a map computes.
    """


@functools.cache
def _set_apart() -> None:
    """Make Python's global generator a `_Global`, with the two functions that are bound to its former class."""
    shared: Any = random._inst
    shared.__class__ = _Global
    random.random, random.getrandbits = shared.random, shared.getrandbits


@contextmanager
def limited(threads: int, fill: bool = False) -> Iterator[None]:
    """Have torch use this many threads and deterministic algorithms, and restore the caller's settings at the end.

    With `fill` new tensors are filled with NaN, which shows code that reads memory before it writes it; that would
    take 2 to 6 % of the time of a small network of convolutions. Other threads of the process that want to do the
    same wait.
    """
    with alone():
        before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        filling: Any = torch.utils.deterministic
        filled, filling.fill_uninitialized_memory = filling.fill_uninitialized_memory, fill
        torch.set_num_threads(threads)
        # use_deterministic_algorithms(True) sets the same switch, but imports the compiler: more than a second.
        torch.set_deterministic_debug_mode("error")
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])
            filling.fill_uninitialized_memory = filled


@contextmanager
def pinned(seed: int, threads: int, fill: bool = False) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and do all that `limited` does.

    The caller's generators and settings are restored at the end.
    """
    with limited(threads, fill):
        kept, _this_thread.kept = _this_thread.kept, False
        before = None if kept else generators()
        seed_generators(seed)
        try:
            yield
        finally:
            _this_thread.kept = kept
            if before is not None:
                set_generators(before)


def seed_generators(seed: int) -> None:
    """Seed the global generators, which the caller has pinned."""
    torch.default_generator.manual_seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # numpy takes 32 bits at a time
    random.seed(seed)


Generators = tuple[torch.Tensor, Any, Any]
"""The states of the global generators of torch, numpy and Python."""


def generators() -> Generators:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def set_generators(states: Generators) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def generators_kept() -> Iterator[None]:
    """Make `pinned` faster in this thread: the caller's generators are restored only once, after this context."""
    if _this_thread.kept:
        yield
        return
    with alone():
        before = generators()
    _this_thread.kept = True
    try:
        yield
    finally:
        _this_thread.kept = False
        with alone():
            set_generators(before)
