"""What is kept of a run: records, digests, the zarr hierarchy, and the notebook's view of it."""

from importlib import import_module
from typing import Any

_HOMES = {
    "Layout": "records",
    "RoundStore": "store",
    "Run": "run",
    "State": "records",
    "Update": "records",
    "list_runs": "run",
    "open_run": "run",
}

__all__ = ["Layout", "RoundStore", "Run", "State", "Update", "list_runs", "open_run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"storage has no {name!r}")
    return getattr(import_module(f"storage.{_HOMES[name]}"), name)
