"""Holds a little of much memory until it is ended, so that a virtual machine has the rest at hand.

    python tests/benchmarks/memory.py [--gigabytes 15]

A host takes back memory that its guest does not use, in blocks of 2 MB, and gives it again page by page, at
microseconds each: what stores tensors is then timed by how much memory was used before. Here all pages are used
once and let go, but one of each megabyte, so that no block is free as a whole.
"""

from __future__ import annotations

import mmap
import signal

import typer

PAGE, HELD = mmap.PAGESIZE, 1 << 20


def main(gigabytes: int = 15) -> None:
    """Use so many and let them go; tell when that is done, and wait."""
    memory = mmap.mmap(-1, gigabytes << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for first in range(0, len(memory), PAGE):
        memory[first] = 1
    for first in range(0, len(memory), HELD):
        memory.madvise(mmap.MADV_DONTNEED, first + PAGE, HELD - PAGE)
    print(f"{gigabytes} GB are at hand", flush=True)
    signal.pause()


if __name__ == "__main__":
    typer.run(main)
