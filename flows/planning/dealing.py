"""The partitions of a configuration's examples, none of which is loaded yet."""

from __future__ import annotations

from typing import Any

from roundweave.flows.config.experiment import Dealing
from roundweave.flows.config.train import TrainConfig
from roundweave.tasks.data.meaning import NO_NAMES, Meaning
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.table import Data, at_sites, find_source, keep_source
from roundweave.tasks.data.splits.deals import find_split
from roundweave.tasks.data.splits.split import Split


def deal(config: Dealing, dtype: str = "float32", meaning: Meaning = NO_NAMES) -> Partitions:
    """The partitions of a configuration's examples, in the order that names have in `meaning`.

    Nothing is loaded yet. Raises `UsageError`, `CodeError`.
    """
    seed = config.seed if config.split_seed is None else config.split_seed
    split = Split(config.partitions, config.split, seed, config.resplit_every)
    source = find_source(config.data, config.target, split.deal.column, config.hash_data, config.data_options)
    sites = config.site_of_each
    source = at_sites(source, config.data, sites) if sites and not source.partitioned else source
    source = source.arranged(meaning) if meaning != NO_NAMES else source
    own, options = config.score_partitions or 0.0, config.partition_options or {}
    how: dict[str, Any] = {"loading": config.loading, "own_held_out": own, "options": options, "sites": sites}
    return Partitions(source, split, dtype, config.held_out, **how)


def scored_alone(training: TrainConfig, data: Data, target: str | None = None) -> Partitions:
    """Other data, all of whose examples are scored, prepared and with columns left out as in a training."""
    data, trained = keep_source(data), training.data
    alike = isinstance(data, str) and isinstance(trained, str) and data.split(":")[0] == trained.split(":")[0]
    target = target or (training.target if alike else None)
    source = find_source(data, target, find_split(training.split).column, training.hash_data)
    count = len(data) if isinstance(data, tuple) else training.partitions if source.partitioned else 1
    split = Split(count, "contiguous")
    return Partitions(source, split, training.dtype, held_out=1, loading=training.loading)
