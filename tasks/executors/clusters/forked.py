"""Imported by the process from which local workers are forked."""

import os
import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the flow, which then ends its workers in order
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # SIGINT was blocked when this process was started
os.environ.pop("PYTHONSAFEPATH", None)  # only this process needs it; each fork gets the user's own setting

from roundweave.tasks.own_code.imports import kept  # noqa: E402

with kept(own=True):
    import distributed.nanny  # noqa: F401

    import roundweave.tasks.executors.clusters.ready  # noqa: F401
