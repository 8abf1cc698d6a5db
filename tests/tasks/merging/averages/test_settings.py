"""Settings that go from the first numbered layer to the last: how deep each tensor lies by its name."""

from __future__ import annotations

import pytest

from roundweave.tasks.merging.averages.settings import positions

NETWORKS = {
    "stages": {
        "conv1.weight": 0,
        "bn1.weight": 0,
        "layer1.0.conv.weight": 0,
        "layer1.1.conv.weight": 1 / 4,
        "layer2.0.conv.weight": 2 / 4,
        "layer2.1.conv.weight": 3 / 4,
        "layer10.0.conv.weight": 1,
        "fc.weight": 1,
    },
    "transformer": {
        "model.embed_tokens.weight": 0,
        "vision_model.pre_layrnorm.weight": 0,
        "model.layers.0.mlp.fc.weight": 0,
        "model.layers.2.mlp.fc.weight": 1 / 2,
        "model.layers.11.mlp.fc.weight": 1,
        "model.norm.weight": 1,
        "lm_head.weight": 1,
    },
    "nested stages": {
        "stages.0.blocks.0.weight": 0,
        "stages.0.blocks.1.weight": 1 / 3,
        "stages.1.blocks.0.weight": 2 / 3,
        "stages.1.blocks.1.weight": 1,
    },
    "sublayers": {
        "encoder.block.0.layer.0.weight": 0,
        "encoder.block.0.layer.1.weight": 0,
        "encoder.block.1.layer.0.weight": 1,
        "model.layers.0.experts.1.weight": 0,
        "model.layers.1.experts.0.weight": 1,
    },
    "encoder and decoder": {
        "encoder.block.0.weight": 0,
        "encoder.block.1.weight": 1,
        "decoder.block.0.weight": 0,
        "decoder.block.1.weight": 1 / 2,
        "decoder.block.2.weight": 1,
        "pre_classifier.weight": 1,
    },
}


@pytest.mark.parametrize("depths", NETWORKS.values(), ids=NETWORKS)
def test_layers_are_counted_from_the_first_to_the_last(depths: dict[str, float]) -> None:
    assert positions(depths) == depths
