"""From the names in a configuration to the values they stand for; unknown ones are refused with the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows.config.train import Experiment, TrainConfig
from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.algorithms import ALGORITHMS, build_algorithm
from tasks.data.sources.base import Source
from tasks.data.sources.digits import Digits
from tasks.data.sources.idx import IDX_SETS, Idx
from tasks.data.sources.own import Own
from tasks.networks.losses import LOSSES
from tasks.networks.reference import MODELS
from tasks.user_code import Code, find_code, is_reference

ALGORITHM_OPTIONS = (
    *("lr", "momentum", "nesterov", "local_steps", "local_epochs", "batch_size", "optimizer"),
    *("optimizer_options", "clip_norm", "outer_lr", "outer_momentum", "outer_nesterov"),
    *("init", "match", "match_to", "soft"),
)
"""The fields that belong to the algorithm; those that are None are left to its defaults."""


def with_own_code(config: TrainConfig) -> TrainConfig:
    """The configuration with the user's functions kept by value."""
    known = {"model": MODELS, "loss": LOSSES, "algorithm": ALGORITHMS}
    own = {field: named_or_own(field, getattr(config, field), names) for field, names in known.items()}
    return config.model_copy(update={**own, "data": own_data(config.data)})


def own_data(data: str | Code) -> str | Code:
    """A built-in source of examples, or the user's function kept by value."""
    if isinstance(data, Code) or data == "digits" or data.partition(":")[0] in IDX_SETS:
        return data
    return find_code(named_or_own("data", data, ["digits", *(f"{name}:DIR" for name in IDX_SETS)]) or data)


def named_or_own(field: str, value: str | Code | None, names: Iterable[str]) -> str | Code | None:
    """A built-in name, or the user's function kept by value; raises `UsageError` for an unknown name."""
    if value is None or isinstance(value, Code) or value in names:
        return value
    if is_reference(value):
        return find_code(value)
    raise unknown(field, value, names)


def unknown(what: str, value: str, names: Iterable[str]) -> UsageError:
    """The error for a name that does not exist."""
    names = list(names)
    nearest = difflib.get_close_matches(value, names, 1)
    hint = f"did you mean {nearest[0]}? There" if nearest else "there"
    return UsageError(f"unknown {what} {value!r}; {hint} are {', '.join(names)}, and FILE.py:function")


def find_source(data: str | Code) -> Source:
    """Where the examples come from."""
    if isinstance(data, Code):
        return Own(data)
    if data == "digits":
        return Digits()
    name, _, folder = data.partition(":")
    if not folder:
        raise UsageError(f"data {name} needs the folder of its IDX files: {name}:DIR")
    return Idx(name, str(Path(folder).resolve()))


def find_algorithm(config: Experiment) -> Algorithm:
    """The algorithm with the options that were given."""
    options = {name: value for name in ALGORITHM_OPTIONS if (value := getattr(config, name)) is not None}
    return build_algorithm(config.algorithm, options)


def find_loss(config: Experiment, labels: bool) -> str | Code:
    """The loss that was given, else the one that fits: cross entropy for labels, but squares for `linear`."""
    if config.loss is not None:
        return config.loss
    return "cross_entropy" if labels and config.model != "linear" else "mse"


def short_name(value: str | Code) -> str:
    """A name for people: of a function its own, of a data set the part before the folder."""
    return value.name if isinstance(value, Code) else value.partition(":")[0]


def differences(recorded: dict[str, Any], wanted: Experiment) -> list[str]:
    """The fields in which a recorded experiment and a wanted one differ, as ``field old -> new``."""
    old = Experiment(**{name: value for name, value in recorded.items() if name in Experiment.model_fields})
    return [
        f"{name} {_shown(before)} -> {_shown(after)}"
        for name in Experiment.model_fields
        # The examples are compared by their digest: the folder may have moved.
        if name != "data" and _identity(before := getattr(old, name)) != _identity(after := getattr(wanted, name))
    ]


def _identity(value: Any) -> Any:
    return value.digest if isinstance(value, Code) else value


def _shown(value: Any) -> str:
    return f"{value.reference} ({value.digest[:8]})" if isinstance(value, Code) else str(value)
