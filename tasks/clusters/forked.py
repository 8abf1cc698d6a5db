"""Imported by the process of which local workers are forks."""

import os

os.environ.pop("PYTHONSAFEPATH", None)  # it is for this process; what the user has is told to each fork

# Our packages are found before others that are called so.
import roundweave  # noqa: F401
from tasks.imports import kept

with kept(own=True):
    import distributed.nanny  # noqa: F401

    import tasks.clusters.ready  # noqa: F401
