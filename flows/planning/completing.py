"""Completes a configuration: the functions, networks and partitions behind its names, and dependent defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roundweave.flows.config.base import own_options
from roundweave.flows.config.experiment import PREPARED, Dealing
from roundweave.flows.config.plugins import active_plugins, through
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.checkpoints.folders import CONFIG
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.run import Opener
from roundweave.tasks.data.meaning import NO_NAMES, Meaning
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.table import Data, find_source, keep_source
from roundweave.tasks.data.splits.deals import find_split
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.networks.pretrained import PREFIX as PRETRAINED
from roundweave.tasks.networks.pretrained import find_pretrained
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSS_NAMES, SCORES
from roundweave.tasks.networks.start import Fork, Start, find_start
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import unknown


def complete(config: TrainConfig, new: bool, opened: Opener) -> TrainConfig:
    """Return the configuration with the source of the user's functions, and with schedules as long as this run.

    The start of a `new` run is found. Raises `RoundweaveError`.
    """
    config = config.model_copy(update={"start_from": _found_start(config, new, opened) or config.start_from})
    own = {
        **with_source(config, _model_given(config)),
        "scores": config.scores and tuple(named_or_own("score", score, SCORES) for score in config.scores),
        "algorithm": config.algorithm.recorded(config.rounds),
        "recombined": config.recombined and config.recombined.model_copy(update=config.recombined.recorded()),
    }
    return config.model_copy(update=own)


def _found_start(config: TrainConfig, new: bool, opened: Opener) -> Start | None:
    """Return the start of a `new` run. None is the default, also if this run keeps its own copy of the start."""
    start = config.start_from
    if start and config.algorithm.options.get("init") == "per-partition":
        raise UsageError(
            "init = per-partition gives each partition weights of its own; leave start_from out, or init"
        )
    if isinstance(start, Fork) and new:
        return start
    return find_start(start, config.root, opened) if isinstance(start, str) else None


def _model_given(config: TrainConfig) -> str | Code:
    """Return the model of a configuration. The default is the model of the folder that the run starts from.

    Raises `UsageError` for a folder that does not name its network.
    """
    start = config.start_from
    if "model" not in config.model_fields_set and isinstance(start, Start) and not stored_round(start.reference):
        folder = Path(start.reference)
        if folder.is_dir() and not (folder / CONFIG).exists():
            raise UsageError(f"{folder} has no {CONFIG}, which says what network it has; give --model")
        return f"{PRETRAINED}{folder}" if folder.is_dir() else config.model
    return config.model


def with_source(config: Any, model: str | Code | None) -> dict[str, Any]:
    """Return the fields that decide the data and the training, with the source of functions.

    Raises `UsageError` for unknown names, and `CodeError`.
    """
    named = own_options(type(config), data=True)
    return {
        **{name: keep_source(data) for name in named if (data := getattr(config, name))},
        **{name: find_code(given) for name in PREPARED if (given := getattr(config, name))},
        **(found_model(model, config.model_options) if model else {}),
        "loss": config.loss and named_or_own("loss", config.loss, LOSS_NAMES),
    }


def found_model(model: str | Code, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a configuration that build its network: a name or source, and its options.

    ``transformers:FOLDER`` becomes the whole content of its ``config.json``, so that no run depends on the folder.
    Raises `UsageError` for an unknown name, and `CheckpointError` for a folder that cannot be used.
    """
    if isinstance(model, str) and model.startswith(PRETRAINED):
        code, options = find_pretrained(model, options or {})
        return {"model": code, "model_options": options}
    return {"model": named_or_own("model", model, (*MODELS,), f"{PRETRAINED}FOLDER")}


def named_or_own(what: str, value: str | Code, names: Iterable[str], *others: str) -> str | Code:
    """Return a built-in name, or the source of a user's function. Raises `UsageError` for an unknown name."""
    if isinstance(value, Code) or value in names:
        return value
    if is_reference(value):
        return find_code(value)
    raise unknown(what, value, [*names, *others, "FILE.py:function"])


def deal(config: Dealing, dtype: str = "float32", meaning: Meaning = NO_NAMES) -> Partitions:
    """Return the partitions of a configuration's examples, in the order of the names in `meaning`.

    Nothing is loaded yet. Raises `UsageError` and `CodeError`.
    """
    seed = config.seed if config.split_seed is None else config.split_seed
    split = Split(config.partitions, config.split, seed, config.resplit_every)
    table = (config.columns, config.encode)
    read = (config.target, split.deal.column, config.hash_data, config.data_options, *table)
    source = find_source(config.data, *read)
    source = source.arranged(meaning) if meaning != NO_NAMES else source
    how: dict[str, Any] = {"loading": config.loading, "options": config.partition_options or {}}
    partitions = Partitions(source, split, dtype, config.held_out, **how)
    return through(partitions, active_plugins(config), "deal", config)


def scored_alone(training: TrainConfig, data: Data, target: str | None = None) -> Partitions:
    """Return other data whose examples are all scored, prepared and with columns left out as in training."""
    data, trained = keep_source(data), training.data
    alike = isinstance(data, str) and isinstance(trained, str) and data.split(":")[0] == trained.split(":")[0]
    target = target or (training.target if alike else None)
    table = (training.columns, training.encode) if alike else (None, None)
    source = find_source(data, target, find_split(training.split).column, training.hash_data, {}, *table)
    count = len(data) if isinstance(data, tuple) else training.partitions if source.partitioned else 1
    split = Split(count, "contiguous")
    return Partitions(source, split, training.dtype, held_out=1, loading=training.loading)
