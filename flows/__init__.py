"""The Prefect flows, their configuration, and the command line."""

import os
from importlib import import_module
from typing import Any

# Prefect and its server report usage unless told not to, and read this when they are imported.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

_HOMES = {
    "MergeConfig": "config.merge",
    "TrainConfig": "config.train",
    "merge": "merging.flow",
    "train": "training.flow",
}

__all__ = ["MergeConfig", "TrainConfig", "merge", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"flows has no {name!r}")
    if name in ("merge", "train"):
        import_module("flows.serving.server").keep_prefect_home(import_module("storage.runs.names").default_root())
    return getattr(import_module(f"flows.{_HOMES[name]}"), name)
