"""Seeds, thread counts and deterministic algorithms, which are set while results are computed."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits from the SHA-256 of the parts, such as (run seed, round, partition)."""
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


def _alone() -> AbstractContextManager[Any]:
    """A context in which no other thread pins numerics: the lock, unless another thread has lent it."""
    return nullcontext() if _this_thread.lent else _lock


@contextmanager
def limited(threads: int, fill: bool = False) -> Iterator[None]:
    """Have torch use this many threads and deterministic algorithms, and restore the caller's settings at the end.

    With `fill` new tensors are filled with NaN, which shows code that reads memory before it writes it; that would
    take 2 to 6 % of the time of a small network of convolutions. Other threads of the process that want to do the
    same wait.
    """
    with _alone():
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
        torch.default_generator.manual_seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # numpy takes 32 bits at a time
        random.seed(seed)
        try:
            yield
        finally:
            _this_thread.kept = kept
            if before is not None:
                set_generators(before)


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
    with _alone():
        before = generators()
    _this_thread.kept = True
    try:
        yield
    finally:
        _this_thread.kept = False
        with _alone():
            set_generators(before)
