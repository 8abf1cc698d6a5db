"""Settings that go from the first numbered layer to the last: how deep each tensor lies by its name."""

from __future__ import annotations

import pytest

from roundweave.tasks.merging.averages.settings import positions

NETWORKS = {
    "stages": {
        0: ("conv1.weight", "bn1.weight", "layer1.0.conv.weight"),
        1 / 4: ("layer1.1.conv.weight",),
        2 / 4: ("layer2.0.conv.weight",),
        3 / 4: ("layer2.1.conv.weight",),
        1: ("layer10.0.conv.weight", "fc.weight"),
    },
    "transformer": {
        0: ("model.embed_tokens.weight", "vision_model.pre_layrnorm.weight", "model.layers.0.mlp.fc.weight"),
        1 / 2: ("model.layers.2.mlp.fc.weight",),
        1: ("model.layers.11.mlp.fc.weight", "model.norm.weight", "lm_head.weight"),
    },
    "nested stages": {number / 3: (f"stages.{number // 2}.blocks.{number % 2}.weight",) for number in range(4)},
    "sublayers": {
        0: (*(f"encoder.block.0.layer.{number}.weight" for number in (0, 1)), "model.layers.0.experts.1.weight"),
        1: ("encoder.block.1.layer.0.weight", "model.layers.1.experts.0.weight"),
    },
    "encoder and decoder": {
        0: ("encoder.block.0.weight", "decoder.block.0.weight"),
        1 / 2: ("decoder.block.1.weight",),
        1: ("encoder.block.1.weight", "decoder.block.2.weight", "pre_classifier.weight"),
    },
}


@pytest.mark.parametrize("names", NETWORKS.values(), ids=NETWORKS)
def test_layers_are_counted_from_the_first_to_the_last(names: dict[float, tuple[str, ...]]) -> None:
    depths = {name: depth for depth, each in names.items() for name in each}
    assert positions(depths) == depths
