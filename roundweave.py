"""The facade: ``import roundweave as rw`` gives what a notebook needs, loaded when it is first used."""

from importlib import import_module
from pathlib import Path
from typing import Any

_HOMES = {
    "Algorithm": "tasks.algebra",
    "MergeConfig": "flows.merge_config",
    "TrainConfig": "flows.config",
    "list_runs": "storage.run",
    "merge": "flows.running",
    "open_run": "storage.run",
    "train": "flows.running",
}

__all__ = ["Algorithm", "MergeConfig", "TrainConfig", "list_runs", "merge", "open_run", "train"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"roundweave has no {name!r}; it has {', '.join(__all__)}")
    module = import_module(_HOMES[name])
    package = import_module(_HOMES[name].partition(".")[0])
    home = Path(package.__file__ or "").resolve().parent.parent
    if home != Path(__file__).resolve().parent:
        raise ImportError(
            f"{home / package.__name__} hides Roundweave's own {package.__name__}; rename or move it"
        )
    return getattr(module, name)
