"""Imported by each local worker before it joins the scheduler; it imports torch and all that maps need."""

import signal
from typing import Any

from roundweave.tasks.own_code.imports import kept

with kept(own=True):
    import roundweave.tasks.rounds.persistence.committing
    import roundweave.tasks.rounds.persistence.mapping  # noqa: F401
    from roundweave.tasks.numerics import devices


def dask_setup(worker: Any) -> None:
    """Dask calls this in each local worker, which then ignores Ctrl-C: the flow ends its workers in order.

    Of several devices, each worker takes the one at its own number.
    """
    devices.ordinal = worker.name if isinstance(worker.name, int) else 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
