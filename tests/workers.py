"""Which processes are workers of a local cluster."""

from __future__ import annotations

import psutil


def worker_processes(process: psutil.Process) -> list[psutil.Process]:
    """Those that a process has started, or that one below it has: forks of one process, or spawned."""
    return [
        child
        for child in process.children(recursive=True)
        if "spawn_main" in _command(child) or "forkserver" in _command(child.parent() or child)
    ]


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
