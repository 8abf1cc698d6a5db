"""The Prefect flows, for serving and scheduling; `roundweave.train` and `roundweave.merge` run them at once."""

import os
import warnings
from typing import Any

import lazy_loader

# Prefect and its server report usage unless told not to, and read this when they are imported.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# A flow that is called without a server waits for Prefect's own, which may take longer than its 20 seconds.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

FLOWS = ("merge_flow", "train_flow")
"""What imports Prefect, which then keeps its files under the root."""

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in FLOWS:
        from roundweave.flows.serving.server import place_prefect_home
        from roundweave.storage.runs.names import default_root

        place_prefect_home(default_root())
        with warnings.catch_warnings():
            # Prefect would make its folder; while the root is not there, it cannot and need not.
            warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
            return _attribute(name)
    return _attribute(name)
