"""Small networks of a file of one's own, and the files that they are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.gallery import Gallery
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.own_code.code import find_code
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import TENSORS


@pytest.fixture
def gallery(tmp_path) -> Callable[..., Gallery]:
    """A gallery of a network of `mine`, or of the mlp, on its data in four blocks."""

    def make(
        model: str = "mlp", examples: int = 400, blocks: int = 4, batch: int = 25, **fields: object
    ) -> Gallery:
        code = model if model == "mlp" else find_code(f"{mine.__file__}:{model}")
        options = '{"hidden": 8}' if model == "mlp" else "{}"
        objective = Objective(ModelSpec(code, (6,), 3, "float32", 0, options), "cross_entropy", ("accuracy",))
        partitions = Partitions(Own(find_code(f"{mine.__file__}:data")), Split(blocks), held_out=0.25)
        inputs = partitions.load(0, 0).inputs[:batch]
        units = find_units(objective.model.build(), (inputs,))
        return Gallery(partitions, examples, objective, units, tmp_path)

    return make


@pytest.fixture
def written(tmp_path) -> Callable[[Gallery, int], tuple[list[TENSORS], tuple[str, ...]]]:
    """Networks with other random weights and statistics each, and the files that they are in."""

    def write(gallery: Gallery, count: int = 2) -> tuple[list[TENSORS], tuple[str, ...]]:
        states = []
        for seed in range(count):
            network = replace(gallery.objective.model, seed=seed + 1).build()
            for module in network.modules():
                if isinstance(module, nn.BatchNorm1d):
                    generator = torch.Generator().manual_seed(seed)
                    module.running_mean.copy_(torch.rand(module.num_features, generator=generator))
                    module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                    module.num_batches_tracked.fill_(seed + 3)
            states.append(network.state_dict())
        places = tuple(str(tmp_path / f"network{i}.pt") for i in range(count))
        for place, state in zip(places, states, strict=True):
            write_checkpoint(place, state)
        return states, places

    return write
