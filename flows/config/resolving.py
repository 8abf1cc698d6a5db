"""From a configuration to the values that its names stand for: once, and before any process is started.

Everything that can be refused without a process is refused here, in the same order whoever asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from flows.config.train import TrainConfig
from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.data.partitions import Description, Partitions
from tasks.data.sources.base import Source
from tasks.data.sources.digits import Digits
from tasks.data.sources.idx import IDX_SETS, Idx
from tasks.data.sources.own import Own
from tasks.data.splits import Split
from tasks.naming import unknown
from tasks.networks.losses import LOSSES
from tasks.networks.objective import ModelSpec, Objective, check_fit
from tasks.networks.reference import MODELS
from tasks.user_code import Code, find_code, is_reference


@dataclass(frozen=True)
class Resolved:
    """What a configuration stands for; `config` holds the user's functions by value.

    `description` is None where each partition is loaded where it is mapped, until it was described there.
    """

    config: TrainConfig
    algorithm: Algorithm
    partitions: Partitions
    description: Description | None = None

    @property
    def objective(self) -> Objective:
        """The network and loss for the examples, once these are described."""
        return objective_for(self.config, self.described)

    @property
    def described(self) -> Description:
        """What the examples are like."""
        assert self.description is not None, "each partition is described where it is"
        return self.description


def resolve(config: TrainConfig) -> Resolved:
    """The values of a configuration; raises what is wrong with it, its code, its data or its network."""
    config = with_own_code(config)
    algorithm = config.algorithm.build()
    split = Split(config.partitions, config.split, config.seed, config.resplit_every)
    partitions = Partitions(find_source(config.data), split, config.dtype, config.held_out)
    resolved = Resolved(config, algorithm, partitions)
    if partitions.source.partitioned:
        return resolved
    description = partitions.describe(0)
    split.check(description.examples)
    resolved = replace(resolved, description=description)
    check_fit(resolved.objective, partitions, description.classes, 0)
    return resolved


def with_own_code(config: TrainConfig) -> TrainConfig:
    """The configuration with the user's functions kept by value."""
    own = {
        "data": own_data(config.data),
        "model": named_or_own("model", config.model, MODELS),
        "loss": config.loss and named_or_own("loss", config.loss, LOSSES),
        "algorithm": config.algorithm.kept(),
    }
    return config.model_copy(update=own)


def named_or_own(what: str, value: str | Code, names: Iterable[str]) -> str | Code:
    """A built-in name, or the user's function kept by value; raises `UsageError` for an unknown name."""
    if isinstance(value, Code) or value in names:
        return value
    if is_reference(value):
        return find_code(value)
    raise unknown(what, value, names)


def own_data(data: str | Code) -> str | Code:
    """A built-in source of examples, or the user's function kept by value."""
    if isinstance(data, Code) or data == "digits" or data.partition(":")[0] in IDX_SETS:
        return data
    return named_or_own("data", data, ["digits", *(f"{name}:DIR" for name in IDX_SETS)])


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


def objective_for(config: TrainConfig, description: Description) -> Objective:
    """The network and loss of a configuration for examples of a description.

    The loss that was not given is the one that fits: cross entropy for labels, but squares for `linear`.
    """
    fitting = "cross_entropy" if description.labels and config.model != "linear" else "mse"
    loss = fitting if config.loss is None else config.loss
    outputs = description.classes if description.labels and loss != "mse" else prod(description.targets)
    options = json.dumps(config.model_options, sort_keys=True)
    model = ModelSpec(config.model, description.inputs, outputs, config.dtype, config.seed, options)
    return Objective(model, loss)


def short_name(value: str | Code) -> str:
    """A name for people: of a function its own, of a data set the part before the folder."""
    return value.name if isinstance(value, Code) else value.partition(":")[0]
