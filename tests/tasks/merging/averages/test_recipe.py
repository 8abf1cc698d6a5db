"""Recipes: what each tensor gets by layer, filter and depth, and what is refused before anything is merged."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.merging.averages.interpolations import LinearMean, Slerp
from roundweave.tasks.merging.averages.recipe import Wanted, combining
from roundweave.tasks.merging.averages.settings import Rule, positions
from roundweave.tasks.merging.averages.task_vectors import DareLinear, TaskArithmetic, Ties

LAYERS = ("0.mlp", "0.attn", "1.mlp", "2.mlp")
NAMES = ("embed.weight", *(f"layers.{name}.weight" for name in LAYERS))


def test_a_layer_has_coefficients_of_its_own() -> None:
    recipe = Wanted(TaskArithmetic, (1.0, 1.0), layers={"layers.0": (2.0, -0.5)}).recipe(NAMES)
    assert recipe["layers.0.mlp.weight"] == (TaskArithmetic(), (2.0, -0.5))
    assert recipe["layers.1.mlp.weight"] == (TaskArithmetic(), (1.0, 1.0))


def test_filters_and_gradients_say_how_far_each_tensor_goes() -> None:
    rules = (Rule(filter="attn", value=0.25), Rule(filter="mlp", value=(0.0, 0.5, 1.0)), Rule(value=0.75))
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": rules}).recipe(NAMES)
    assert [recipe[name][0].t for name in NAMES] == [0.75, 0.0, 0.25, 0.5, 1.0]


def test_each_network_may_have_a_gradient_and_a_density_of_its_own() -> None:
    recipe = Wanted(Ties, ((0.0, 1.0), 0.5), {"density": (0.5, (0.2, 0.4))}).recipe(NAMES)
    assert recipe["layers.1.mlp.weight"] == (Ties(density=(0.5, pytest.approx(0.3))), (0.5, 0.5))
    assert recipe["layers.2.mlp.weight"] == (Ties(density=(0.5, 0.4)), (1.0, 0.5))
    assert recipe["embed.weight"] == (Ties(density=(0.5, 0.2)), (0.0, 0.5))  # outside of layers: as in the first


def test_buffers_take_a_mean_that_keeps_variances_above_zero() -> None:
    recipe = Wanted(TaskArithmetic, (1.0, -1.0)).recipe(("w", "running_var"), {"running_var"})
    found = combining(recipe, [state(3.0), state(5.0)], state(1.0))
    assert (found("w").item(), found("running_var").item()) == (-1.0, 4.0)
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": 0.25}).recipe(("w", "running_var"), {"running_var"})
    assert recipe["running_var"] == (LinearMean(), (0.75, 0.25))


def state(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value]), "running_var": torch.tensor([value])}


def test_complex_numbers_have_a_mean_and_no_other_average() -> None:
    states = [{"w": torch.tensor([value, 2.0 - value])} for value in (1.0 + 2.0j, 3.0j)]
    with pytest.raises(UsageError, match="tensor w has complex numbers, which only average = mean takes"):
        combining(Wanted(Ties, (1.0, 1.0)).recipe(("w",)), states, states[0])("w")


def test_the_seed_is_the_draws() -> None:
    (average, _), *_ = Wanted(DareLinear, (1.0,), seed=7).recipe(("w",)).values()
    assert average == DareLinear(seed=7)


def test_a_gradient_needs_numbered_layers() -> None:
    with pytest.raises(UsageError, match="no tensor is of a numbered layer"):
        Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("fc1.weight", "fc2.weight"))


def test_a_single_layer_is_the_last_one() -> None:
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("wte.weight", "layers.0.weight", "ln_f.weight"))
    assert [average.t for average, _ in recipe.values()] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["scale", "merger.norm.weight", "vision_adapter.norm.weight"])
def test_a_gradient_has_no_number_for_what_is_neither_before_nor_after_the_layers(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} is of no layer, and its name does not say"):
        Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("layers.0.weight", name))
    ruled = Wanted(Slerp, (1.0, 1.0), {"t": (Rule(value=0.5, filter=name), Rule(value=(0.0, 1.0)))})
    assert ruled.recipe(("layers.0.weight", name))[name][0].t == 0.5


NETWORKS = {
    "stages": {
        0: ("conv1.weight", "bn1.weight", "layer1.0.conv.weight"),
        1 / 4: ("layer1.1.conv.weight",),
        2 / 4: ("layer2.0.conv.weight",),
        3 / 4: ("layer2.1.conv.weight",),
        1: ("layer10.0.conv.weight", "fc.weight"),
    },
    "transformer": {
        0: (
            "model.embed_tokens.weight",
            "cls_token",
            "vision_model.pre_layrnorm.weight",
            "model.layers.0.mlp.fc.weight",
        ),
        1 / 2: ("model.layers.2.mlp.fc.weight",),
        1: ("model.layers.11.mlp.fc.weight", "model.norm.weight", "lm_head.weight", "vocab_projector.weight"),
    },
    "numbered parts of a head, and between stacks": {
        0: ("model.layers.0.weight",),
        1: ("model.layers.1.weight", "classifier.0.weight", "classifier.3.weight"),
        None: (
            "mm_projector.0.weight",
            "visual.deepstack_merger_list.0.norm.weight",
            "vision_adapter.mlp.fc1.weight",
        ),
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
def test_layers_are_counted_from_the_first_to_the_last(names: dict[float | None, tuple[str, ...]]) -> None:
    depths = {name: depth for depth, each in names.items() for name in each}
    assert positions(depths) == depths
