"""Recipes: what each tensor gets by layer, filter and depth, and what is refused before anything is merged."""

from __future__ import annotations

import pickle

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.merging.averages.interpolations import LinearMean, Slerp
from roundweave.tasks.merging.averages.recipe import Wanted, check_average, combining
from roundweave.tasks.merging.averages.settings import Rule
from roundweave.tasks.merging.averages.table import AVERAGES
from roundweave.tasks.merging.averages.task_vectors import DareLinear, TaskArithmetic, Ties

NAMES = (
    "embed.weight",
    "layers.0.mlp.weight",
    "layers.0.attn.weight",
    "layers.1.mlp.weight",
    "layers.2.mlp.weight",
)


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
    return {
        "w": torch.tensor([value]),
        "running_var": torch.tensor([value]),
        "count": torch.tensor(int(value)),
        "mask": torch.tensor([value > 4]),
    }


def test_integers_and_bools_take_the_maximum_of_the_networks() -> None:
    recipe = Wanted(Ties, (1.0, 1.0)).recipe(tuple(state(0.0)))
    found = combining(recipe, [state(3.0), state(5.0)], state(9.0))
    assert (found("count").item(), found("count").dtype) == (5, torch.int64)
    assert found("mask").tolist() == [True]


def test_complex_numbers_have_a_mean_and_no_other_average() -> None:
    states = [{"w": torch.tensor([value, 2.0 - value])} for value in (1.0 + 2.0j, 3.0j)]
    found = combining(Wanted(LinearMean, (1.0, 3.0)).recipe(("w",)), states)("w")
    assert found.tolist() == [0.25 + 2.75j, 1.75 - 2.75j]
    with pytest.raises(UsageError, match="tensor w has complex numbers, which have a mean alone"):
        combining(Wanted(Ties, (1.0, 1.0)).recipe(("w",)), states, states[0])("w")


def test_the_seed_is_the_draws() -> None:
    (average, _), *_ = Wanted(DareLinear, (1.0,), seed=7).recipe(("w",)).values()
    assert average == DareLinear(seed=7)


@pytest.mark.parametrize("name", AVERAGES)
def test_each_average_of_the_table_pickles_prints_and_is_documented(name) -> None:
    kind = AVERAGES[name].load()
    average = kind()
    assert pickle.loads(pickle.dumps(average)) == average
    assert repr(average).startswith(kind.__name__)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(Slerp, (1.0, 1.0, 1.0)), "Slerp takes 2 networks, not 3"),
        (Wanted(Ties, (1.0,), {"density": (0.0,)}), "density = .*greater than 0"),
        (Wanted(Ties, (1.0,), {"density": (1.5,)}), "density = .*less than or equal to 1"),
        (Wanted(Ties, (1.0,), {"density": (0.5, 0.5)}), "density has 2 values for 1 networks; give one, or one a"),
        (Wanted(Slerp, (1.0, 1.0), {"t": 2.0}), "t = 2.0: .*less than or equal to 1"),
        (Wanted(LinearMean, (1.0, -1.0)), "2 networks need as many coefficients with a sum that is not 0"),
        (Wanted(LinearMean, (1.0, 1.0), layers={"layers.0": (1.0, -1.0)}), "with a sum that is not 0"),
        (Wanted(LinearMean, (1.0, 1.0), layers={"layers.0": (1.0,)}), "layer 'layers.0': 2 networks need 2 coeff"),
        (
            Wanted(LinearMean, (1.0, 1.0), layers={"layer": (1.0, 1.0)}),
            "no tensor is of layer 'layer'; there are em",
        ),
        (
            Wanted(Slerp, (1.0, 1.0), {"t": (Rule(filter="mpl", value=0),)}),
            "filter 'mpl' is in the name of no tensor",
        ),
        (
            Wanted(Slerp, (1.0, 1.0), {"t": (Rule(filter="mlp", value=0),)}),
            "t has no value for embed.weight; end it",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused_in_a_line(wanted, message) -> None:
    with pytest.raises(UsageError, match=message):
        wanted.recipe(NAMES)


def test_a_gradient_needs_numbered_layers() -> None:
    with pytest.raises(UsageError, match="no tensor is of a numbered layer"):
        Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("fc1.weight", "fc2.weight"))


def test_a_single_layer_is_the_last_one() -> None:
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": (0.0, 1.0)}).recipe(("wte.weight", "layers.0.weight", "scale"))
    assert [average.t for average, _ in recipe.values()] == [0.0, 1.0, 0.0]


def test_a_gradient_begins_before_the_layers_and_ends_after_them() -> None:
    names = [
        *(
            "model.embed_tokens.weight",
            "model.embeddings.LayerNorm.weight",
            "model.layers.0.w",
            "model.layers.1.w",
        ),
        *("model.layers.2.w", "model.norm.weight", "lm_head.weight"),
    ]
    recipe = Wanted(Slerp, (1.0, 1.0), {"t": (0.2, 0.4, 0.6)}).recipe(names)
    assert [average.t for average, _ in recipe.values()] == pytest.approx([0.2, 0.2, 0.2, 0.4, 0.6, 0.6, 0.6])


@pytest.mark.parametrize(
    ("name", "given", "base", "message"),
    [
        ("slerp", ["coefficients"], False, "average slerp has no option coefficients; it has t"),
        ("mean", ["density"], False, "average mean has no option density; it has coefficients, layers, normalize"),
        ("mean", [], True, "average mean takes no base network"),
        ("ties", [], False, "average ties needs the network from which all were trained; give base"),
    ],
)
def test_options_of_other_averages_are_refused(name, given, base, message) -> None:
    with pytest.raises(UsageError, match=message):
        check_average(name, AVERAGES[name].load(), given, base)
