"""Imported by the process of which local workers are forks."""

import os
import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the flow, which then ends its workers in order
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back since this process began
os.environ.pop("PYTHONSAFEPATH", None)  # it is for this process; what the user has is told to each fork

# Our packages are found before others that are called so.
import roundweave  # noqa: E402, F401
from tasks.imports import kept  # noqa: E402

with kept(own=True):
    import distributed.nanny  # noqa: F401

    import tasks.clusters.ready  # noqa: F401
