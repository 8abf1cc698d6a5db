"""What decides the bits: seeds, thread counts, deterministic algorithms, and the processor itself."""

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
from storage.values.digests import text_digest

OVERRIDES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_")
"""Environment variables with these prefixes may change the bits (thread counts apart: a map sets its own)."""

HARMLESS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Of these, some that change no bits: importing scikit-learn sets them, in one process and not another."""

Fingerprint = dict[str, str]


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from SHA-256 of the parts, such as (run seed, round, partition)."""
    text = ",".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_lock = threading.RLock()
"""Generators and settings belong to the process, and a worker may have several threads."""


class _ThisThread(threading.local):
    """What holds in one thread.

    `lent`: another thread has the lock, and waits for this one. `kept`: `generators_kept` puts the caller's
    generators back at its end, so what is pinned within need not.
    """

    lent = False
    kept = False


_this_thread = _ThisThread()


@contextmanager
def lent() -> Iterator[None]:
    """Within, this thread may pin numerics although another thread has them pinned, which must wait meanwhile."""
    _this_thread.lent = True
    try:
        yield
    finally:
        _this_thread.lent = False


def _alone() -> AbstractContextManager[Any]:
    """Within, no other thread has its numerics pinned."""
    return nullcontext() if _this_thread.lent else _lock


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Torch with so many threads and deterministic algorithms; the caller's settings return at the end.

    One thread of the process at a time.
    """
    with _alone():
        before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        torch.set_num_threads(threads)
        # use_deterministic_algorithms(True) sets the same switch but imports the compiler, a second and more.
        torch.set_deterministic_debug_mode("error")
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])


@contextmanager
def pinned(seed: int, threads: int) -> Iterator[None]:
    """As `limited`, and the global generators of torch, numpy and Python start from a seed.

    The caller's generators return at the end.
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
    """Within, this thread pins numerics in less time: the caller's generators return once, at the end."""
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
def fingerprint() -> Fingerprint:
    """What in this process may change the bits of a floating-point result."""
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
    """Which Python and which packages are installed here; those that are not are left out."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


def check_fingerprint(expected: Fingerprint, found: Fingerprint, where: str) -> None:
    """Raise `NumericsMismatch`, naming what differs, unless both promise the same bits."""
    if differing := differing_numerics(expected, found):
        raise NumericsMismatch(
            f"{where} would compute other bits than this run: {differing}. "
            "Use equal machines, or start a run with --mixed-hardware, which withdraws the promise of equal bits"
        )


def differing_numerics(expected: Fingerprint, found: Fingerprint) -> str:
    """In what two fingerprints differ, empty where they promise the same bits."""
    differing = (name for name, value in expected.items() if found.get(name) != value)
    return "; ".join(f"{name} {found.get(name)!r} instead of {expected[name]!r}" for name in differing)


@functools.cache
def source_digest() -> str:
    """A digest of the source files of this Roundweave that decide what a step does."""
    root = Path(__file__).parents[1]
    files = sorted(path for room in ("tasks", "storage") for path in (root / room).rglob("*.py"))
    return text_digest("\n".join(f"{path.relative_to(root)}\n{path.read_text()}" for path in files))[:16]


def check_source(expected: str, found: str, where: str) -> None:
    """Raise `NumericsMismatch` unless a process has the same Roundweave as the one that began the run."""
    if found != expected:
        raise NumericsMismatch(
            f"{where} has another version of Roundweave (source {found}) than the process that began the run "
            f"({expected}); install the same one in both"
        )


def source_and_fingerprint() -> tuple[str, Fingerprint]:
    """What is compared between processes before round 1."""
    return source_digest(), fingerprint()


ACCUMULATORS = {"float64": torch.float64}
"""The type in which vectors of a dtype are summed; float32 for all others."""


def accumulator(dtype: str) -> torch.dtype:
    """The type in which sums of `dtype` are kept."""
    return ACCUMULATORS.get(dtype, torch.float32)


def is_float(dtype: str) -> bool:
    """Whether a logical dtype is a floating one."""
    return bool(getattr(torch, dtype).is_floating_point)
