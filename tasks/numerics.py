"""What decides the bits of results: seeds, thread counts, deterministic algorithms, and the processor itself."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import NumericsMismatch
from storage.values.hashing import text_digest
from tasks.devices import CPU, device_fingerprint

OVERRIDES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_")
"""Environment variables with these prefixes may change bits, except for thread counts, which each map sets."""

HARMLESS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Of those variables, some that change no bits. Importing scikit-learn sets them, which not all processes do."""

Fingerprint = dict[str, str]


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
def limited(threads: int) -> Iterator[None]:
    """Have torch use this many threads and deterministic algorithms, and restore the caller's settings at the end.

    Other threads of the process that want to do the same wait.
    """
    with _alone():
        before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        torch.set_num_threads(threads)
        # use_deterministic_algorithms(True) sets the same switch, but imports the compiler: more than a second.
        torch.set_deterministic_debug_mode("error")
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])


@contextmanager
def pinned(seed: int, threads: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and do all that `limited` does.

    The caller's generators and settings are restored at the end.
    """
    with limited(threads):
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


@functools.cache
def fingerprint(device: str = CPU) -> Fingerprint:
    """All that may change the bits of results in this process: builds, processor, environment, and the device.

    Raises `UsageError` if this process has no such device.
    """
    environment = {
        key: value
        for key, value in sorted(os.environ.items())
        if key.startswith(OVERRIDES) and not key.endswith("NUM_THREADS") and key not in HARMLESS
    }
    return {
        "torch": torch.__version__,
        "build": text_digest(torch.__config__.show())[:16],
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "overrides": " ".join(f"{key}={value}" for key, value in environment.items()),
        **device_fingerprint(device),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = ("vendor_id", "cpu family", "model", "model name")
    return " ".join(fields[name].strip(" \t:") for name in names if name in fields) or platform.machine()


PACKAGES = ("roundweave", "torch", "numpy", "zarr", "dask", "prefect")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages in `PACKAGES` that are installed here."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


def check_fingerprint(expected: Fingerprint, found: Fingerprint, where: str) -> None:
    """Raise `NumericsMismatch`, which names what differs, unless two fingerprints promise the same bits.

    `where` names the process of the `found` fingerprint.
    """
    if differing := differing_numerics(expected, found):
        raise NumericsMismatch(
            f"{where} would compute other bits than this run: {differing}. "
            "Use equal machines, or start a run with --mixed-hardware, which withdraws the promise of equal bits"
        )


def differing_numerics(expected: Fingerprint, found: Fingerprint) -> str:
    """In what two fingerprints differ, as text; empty if they promise the same bits."""
    differing = (name for name, value in expected.items() if found.get(name) != value)
    return "; ".join(f"{name} {found.get(name)!r} instead of {expected[name]!r}" for name in differing)


@functools.cache
def source_digest() -> str:
    """A digest of the source files of this Roundweave that decide the results of rounds, 16 hexadecimal digits."""
    root = Path(__file__).parents[1]
    files = sorted(path for room in ("tasks", "storage") for path in (root / room).rglob("*.py"))
    return text_digest("\n".join(f"{path.relative_to(root)}\n{path.read_text()}" for path in files))[:16]


def check_source(expected: str, found: str, where: str) -> None:
    """Raise `NumericsMismatch` unless a process has the same Roundweave source as the one that began the run."""
    if found != expected:
        raise NumericsMismatch(
            f"{where} has another version of Roundweave (source {found}) than the process that began the run "
            f"({expected}); install the same one in both"
        )


def source_and_fingerprint(device: str) -> tuple[str, Fingerprint]:
    """The source digest and fingerprint of this process, which are compared between processes before round 1."""
    return source_digest(), fingerprint(device)


ACCUMULATORS = {"float64": torch.float64}
"""The types in which vectors are summed, by their dtype; float32 for all other dtypes."""


def accumulator(dtype: str) -> torch.dtype:
    """The type in which vectors of a dtype are summed."""
    return ACCUMULATORS.get(dtype, torch.float32)


def is_float(dtype: str) -> bool:
    """Whether a dtype, such as ``bfloat16``, is a floating-point type."""
    return bool(getattr(torch, dtype).is_floating_point)
