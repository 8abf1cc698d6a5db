"""What decides the bits: seeds, thread counts, deterministic algorithms, and the processor itself."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def pinned(seed: int, threads: int) -> Iterator[None]:
    """Torch with this seed, this many threads and deterministic algorithms; the caller's settings return."""
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(threads)
        # use_deterministic_algorithms(True) sets the same switch but imports the compiler, a second and more.
        torch.set_deterministic_debug_mode("error")
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])


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


def check_fingerprint(expected: Fingerprint, found: Fingerprint, where: str) -> None:
    """Raise `NumericsMismatch`, naming what differs, unless both promise the same bits."""
    differing = [
        f"{key} {found.get(key)!r} instead of {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]
    if differing:
        raise NumericsMismatch(
            f"{where} would compute other bits than this run: {'; '.join(differing)}. "
            "Use equal machines, or start a run with --mixed-hardware, which withdraws the promise of equal bits"
        )


ACCUMULATORS = {"float64": torch.float64}
"""The type in which vectors of a dtype are summed; float32 for all others."""


def accumulator(dtype: str) -> torch.dtype:
    """The type in which sums of `dtype` are kept."""
    return ACCUMULATORS.get(dtype, torch.float32)


def is_float(dtype: str) -> bool:
    """Whether a logical dtype is a floating one."""
    return bool(getattr(torch, dtype).is_floating_point)
