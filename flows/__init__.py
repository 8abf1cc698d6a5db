"""The Prefect flows, their configuration, and the command line."""

from importlib import import_module
from typing import Any

_HOMES = {"TrainConfig": "config", "train": "training"}

__all__ = ["TrainConfig", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"flows has no {name!r}")
    return getattr(import_module(f"flows.{_HOMES[name]}"), name)
