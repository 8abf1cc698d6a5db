"""Local workers as forks of one process that has imported what all need, which takes each a second or two.

Measured on 2 cores, to the start of a cluster: 0.3 s where 2 spawned workers take 1.5, 0.7 where 8 take 6.8; and
each has 22 MB of its own where a spawned one has 179.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker

GIB = str(1 << 30)

WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # The nanny's default returns memory to the system after every step, which costs 1.2 to 1.6 times the time.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), GIB),
    "PYTHONHASHSEED": "6640",  # as the nanny would have it: one for all
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # or ranks that wait for others say so on the terminal, five times a second
}
"""What local workers have in theirs before they begin."""

READ_BY_IMPORTS = ("ATEN_", "DASK_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
"""Variables with these prefixes are read when libraries are imported; others reach a fork afterwards."""


@functools.cache
def begin() -> Mapping[str, str] | None:
    """Begin the process of which workers are forks, without waiting for it; later calls do nothing.

    Returns the environment in which it began. Returns None where there is no such process: on systems whose
    libraries do not stand a fork, or where it has no place for its socket, as in a folder for temporary files with
    a long name.
    """
    if sys.platform != "linux":
        return None
    forkserver.set_forkserver_preload(["tasks.clusters.forked"])
    # Safe: of the folder that the user is in nothing is imported, whatever it is called.
    environment = {**WORKER_ENVIRONMENT, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in environment if name in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.environ.update(environment)
    try:
        resource_tracker.ensure_running()  # when Python starts it, it lets signals through again
        # Ctrl-C in the terminal is for the flow, and does not reach a process that begins now.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
    return os.environ | WORKER_ENVIRONMENT


def start_method() -> str:
    """How Python is to start a worker: as a fork, unless the environment has changed since the process began.

    What counts are variables that libraries read when they are imported, for a fork has imported them already.
    """
    began, now = begin(), os.environ | WORKER_ENVIRONMENT
    same = began is not None and began.keys() <= now.keys() and _read_by_imports(began) == _read_by_imports(now)
    return "forkserver" if same else "spawn"


def _read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    from tasks.numerics import HARMLESS  # which imports torch, for which `begin` does not wait

    read = (name for name in environment if name.startswith(READ_BY_IMPORTS) and name not in HARMLESS)
    return {name: environment[name] for name in read}
