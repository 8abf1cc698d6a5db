"""Devices on which maps are computed: which ones a process has; and its memory."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.tensors import Record

T = TypeVar("T")

CPU, AUTO = "cpu", "auto"

ordinal = 0
"""The number of this process among the workers of its machine, each of which takes another of several devices."""


def accelerator() -> str:
    """The kind of accelerator that torch finds in this process, such as ``cuda``; ``cpu`` if there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return CPU if found is None else found.type


def find_device(name: str) -> torch.device:
    """The device of this process that a name such as ``cuda`` or ``cuda:1`` stands for; ``auto`` is what it has.

    Of several of a kind, a name without a number takes the one at this process's place among its machine's
    workers. Raises `UsageError` if this process has no such device.
    """
    kind, _, number = (accelerator() if name == AUTO else name).partition(":")
    if kind == CPU:
        return torch.device(CPU)
    count = _count(kind)
    if not count or int(number or 0) >= count:
        where = f"process {os.getpid()} on {platform.node()} has {count or 'none'}"
        raise UsageError(f"there is no device {name}: {where}; give --device cpu, or auto")
    return torch.device(kind, int(number) if number else ordinal % count)


def _count(kind: str) -> int:
    """Return how many devices of a kind torch finds in this process."""
    module: Any = getattr(torch, kind, None)
    is_available = getattr(torch.backends.mps if kind == "mps" else module, "is_available", bool)
    return int(module.device_count()) if is_available() else 0


def device_fingerprint(name: str) -> dict[str, str]:
    """Return what may change the bits of results on a device: its model, and the versions of its libraries.

    Empty for the processor. Raises `UsageError` if this process has no such device.
    """
    device = find_device(name)
    if device.type == CPU:
        return {}
    module = torch.get_device_module(device)
    model = getattr(module, "get_device_name", lambda device: device.type)(device)
    known = {"device": device.type, "device model": model}
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()
        # torch tells the driver's version nowhere else, and builds without CUDA do not have this.
        driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()
        known |= {"cuda": f"{torch.version.cuda or torch.version.hip}, cudnn {cudnn}, driver {driver}"}
    return known


def moved(value: T, move: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """A value whose tensors, in records, mappings and sequences, are replaced by what `move` makes of them."""
    given: Any = value
    if isinstance(given, torch.Tensor):
        given = move(given)
    elif isinstance(given, Mapping):
        given = {key: moved(inner, move) for key, inner in given.items()}
    elif isinstance(given, tuple | list):
        given = type(given)(moved(inner, move) for inner in given)
    elif isinstance(given, Record):
        given = replace(given, **{name: moved(inner, move) for name, inner in vars(given).items()})  # type: ignore[type-var]
    result: T = given
    return result


LARGE = 64 << 20
"""States of so many bytes leave much memory behind when they have been trained, such as that of gradients."""

KILO = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`, which differs between systems."""

LOOK_SECONDS = 0.25
"""Seconds for which an answer is used again: asking the system would take much of a short round."""


def trim_memory() -> None:
    """Return the memory that is free to the system, where the C library can; local workers keep it otherwise."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def most_memory() -> int:
    """Return the most memory that this process has held so far, in bytes; up to `LOOK_SECONDS` old."""
    return _most_memory(int(time.monotonic() / LOOK_SECONDS))


@functools.lru_cache(maxsize=1)
def _most_memory(moment: int) -> int:
    # On Linux `ru_maxrss` begins with the most that the parent process had held.
    with suppress(OSError):
        if peak := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO
