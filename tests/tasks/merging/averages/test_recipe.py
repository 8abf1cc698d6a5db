"""Recipes: what each tensor gets by layer, filter and depth, and what is refused before anything is merged."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.merging.averages.interpolations import LinearMean, Slerp
from roundweave.tasks.merging.averages.recipe import Wanted, combining
from roundweave.tasks.merging.averages.settings import Rule
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
    with pytest.raises(UsageError, match="tensor w has complex numbers, which have a mean alone"):
        combining(Wanted(Ties, (1.0, 1.0)).recipe(("w",)), states, states[0])("w")


def test_the_seed_is_the_draws() -> None:
    (average, _), *_ = Wanted(DareLinear, (1.0,), seed=7).recipe(("w",)).values()
    assert average == DareLinear(seed=7)


def test_a_gradient_needs_numbered_layers() -> None:
    with pytest.raises(UsageError, match="no tensor is of a numbered layer"):
        Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("fc1.weight", "fc2.weight"))


def test_a_single_layer_is_the_last_one() -> None:
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("wte.weight", "layers.0.weight", "scale"))
    assert [average.t for average, _ in recipe.values()] == [0.0, 1.0, 0.0]


def test_a_gradient_begins_before_the_layers_and_ends_after_them() -> None:
    depths = {"embed_tokens.weight": 0.2, "embeddings.LayerNorm.weight": 0.2, "norm.weight": 0.6, "lm_head": 0.6}
    depths |= {f"layers.{number}.w": 0.2 * (number + 1) for number in range(3)}
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": (0.2, 0.4, 0.6)}).recipe(tuple(depths))
    assert {name: average.t for name, (average, _) in recipe.items()} == pytest.approx(depths)
