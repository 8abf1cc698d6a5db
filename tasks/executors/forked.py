"""Imported by the process from which local workers are forked: all that they need, and the examples."""

import os
import signal
from contextlib import suppress
from importlib import import_module

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the flow, which then ends its workers in order
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # SIGINT was blocked when this process was started
os.environ.pop("PYTHONSAFEPATH", None)  # only this process needs it; each fork gets the user's own setting

from roundweave.tasks.executors.clusters.fork_server import EXAMPLES  # noqa: E402
from roundweave.tasks.own_code.imports import kept  # noqa: E402

OF_DASK = ("nanny", "http.health", "http.statics", "http.worker.prometheus", "protocol.torch")
"""Modules that each worker would import by itself."""

HELD_WHOLE = ("digits", "mnist", "fashion-mnist", "npz")
"""Data of which each worker holds all in memory, whatever else a configuration says."""

with kept(own=True):
    import numpy.ma
    import numpy.random  # noqa: F401

    import roundweave.tasks.executors.clusters.ready
    import roundweave.tasks.executors.pool  # noqa: F401
    from roundweave.tasks.data.reading import opened
    from roundweave.tasks.data.sources.table import find_source

    for module in OF_DASK:
        import_module(f"distributed.{module}")
    if (data := os.environ.pop(EXAMPLES, "")).partition(":")[0] in HELD_WHOLE:
        with suppress(Exception):  # whatever it is, the flow reads them, too, and says so
            opened(find_source(data), None).digest  # noqa: B018 - it is kept with the examples
