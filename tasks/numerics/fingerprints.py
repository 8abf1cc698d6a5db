"""What differs between processes that compute other bits: processor, builds, versions, and our own source."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from roundweave.storage.errors import NumericsMismatch
from roundweave.storage.values.hashing import text_digest
from roundweave.tasks.numerics.devices import CPU, device_fingerprint
from roundweave.tasks.own_code.code import Code, imported

OVERRIDES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_")
"""Environment variables with these prefixes may change bits, except for thread counts, which each map sets."""

HARMLESS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR")
"""They change no bits. Importing scikit-learn or torch's compiler sets them, which not all processes do."""

Fingerprint = dict[str, str]


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
        **{name: versions()[name] for name in ("python", "numpy", "scikit-learn")},
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


PACKAGES = ("roundweave", "torch", "numpy", "scikit-learn", "zarr", "dask", "prefect")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages in `PACKAGES` that are installed here."""
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
    root = Path(__file__).parents[2]
    files = sorted(path for room in ("tasks", "storage") for path in (root / room).rglob("*.py"))
    return text_digest("\n".join(f"{path.relative_to(root)}\n{path.read_text()}" for path in files))[:16]


def sources(codes: tuple[Code, ...]) -> dict[str, str]:
    """Return the digest of the Roundweave source in this process, and what codes import, by name."""
    return {"Roundweave": source_digest(), **imported(codes)}


def check_sources(expected: Mapping[str, str], found: Mapping[str, str], where: str) -> None:
    """Raise `NumericsMismatch` unless a process has the `sources` of the one that began the run."""
    if other := [name for name, digest in expected.items() if found.get(name) != digest]:
        raise NumericsMismatch(
            f"{where} has another version of {', '.join(other[:5])} than the process that began the run, or none; "
            "install the same one in both, and start that worker anew"
        )
