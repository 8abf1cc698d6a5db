"""Layers put together anew, by hand: which tensor comes from where, and what is refused."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.values.lazy import LazyTensors
from roundweave.tasks.merging.averages.settings import Rule
from roundweave.tasks.merging.slices import Slice, sliced_config, stacked
from tests.tasks.merging.by_hand import lazy

OTHERS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def network(
    start: float, layers: int = 3, stem: str = "model.layers.", others: tuple[str, ...] = OTHERS, size: int = 1
) -> LazyTensors:
    """Layer n has the number start + n, and what is outside of layers start + 0.5."""
    values = dict.fromkeys(others, start + 0.5)
    values |= {f"{stem}{n}.{what}.weight": start + n for n in range(layers) for what in ("q", "o")}
    return lazy({name: torch.full((size,), float(value)) for name, value in values.items()})


def stack(networks: dict[str, LazyTensors], *slices: tuple[str, int, int]) -> dict[str, float]:
    parts = [Slice(network=name, layers=(first, end)) for name, first, end in slices]
    return {name: tensor.item() for name, tensor in stacked(parts, networks).items()}


def test_layers_are_numbered_anew_and_the_ends_are_those_of_the_first_and_the_last_slice() -> None:
    found = stack({"a": network(10), "b": network(20)}, ("a", 0, 2), ("b", 1, 3), ("b", 1, 2))
    assert [found[f"model.layers.{n}.q.weight"] for n in range(5)] == [10, 11, 21, 22, 21]
    assert [found[f"model.layers.{n}.o.weight"] for n in range(5)] == [10, 11, 21, 22, 21]
    assert [found[name] for name in OTHERS] == [10.5, 20.5, 20.5]
    assert len(found) == 13


def test_of_one_network_names_outside_of_layers_do_not_matter() -> None:
    one = network(10, stem="h.", others=("strange",))
    wanted = {f"h.{new}.{what}.weight": value for new, value in enumerate((12, 10)) for what in ("q", "o")}
    assert stack({"a": one}, ("a", 2, 3), ("a", 0, 1)) == wanted | {"strange": 10.5}


def test_a_slice_is_scaled_by_rules_and_from_its_first_layer_to_its_last() -> None:
    rules = (Rule(filter=".o.", value=0.0), Rule(filter="lm_head", value=-1.0), Rule(value=(1.0, 2.0, 3.0)))
    parts = [Slice(network="a", layers=(0, 1), scale=0.5), Slice(network="b", layers=(0, 3), scale=rules)]
    found = dict(stacked(parts, {"a": network(10.0), "b": network(20.0)}))
    assert [found[f"model.layers.{n}.q.weight"] for n in range(4)] == [5, 20, 42, 66]
    assert [found[f"model.layers.{n}.o.weight"] for n in range(4)] == [5, 0, 0, 0]
    # Before the layers as the first layer of the first slice, after them as the last one of the last.
    assert [found[name] for name in OTHERS] == [5.25, 61.5, -20.5]


def test_a_scale_leaves_integers_and_is_refused_where_it_is_for_no_tensor() -> None:
    one = dict(network(10, layers=1)) | {"model.layers.0.ids": torch.tensor([3, 4])}
    networks = {"a": lazy(one)}
    assert stacked([Slice(network="a", layers=(0, 1), scale=0.5)], networks)["model.layers.0.ids"].tolist() == [
        3,
        4,
    ]
    with pytest.raises(UsageError, match="filter 'mlp' is in the name of no tensor; there are model"):
        stacked([Slice(network="a", layers=(0, 1), scale=(Rule(filter="mlp", value=0), Rule(value=1)))], networks)
    with pytest.raises(UsageError, match=r"scale has no value for model\.layers\.0\.o\.weight; end the list"):
        stacked([Slice(network="a", layers=(0, 1), scale=(Rule(filter="q", value=0),))], networks)


REFUSED = {
    "too far": ([("a", 1, 4)], "a has no layer model.layers.3; layers are numbered from 0"),
    "two stems": (
        [("a", 0, 1), ("other", 0, 1)],
        "one stack of layers, as model.layers.0, not h.0, model",
    ),
    "no layers": ([("flat", 0, 1)], "one stack of layers, as model.layers.0, not none"),
    "unlike": ([("a", 0, 1), ("wide", 0, 1)], "model.layers.0 of wide has other tensors than the first"),
    "unknown end": ([("a", 0, 1), ("odd", 0, 1)], "strange: its name does not say if it is before or after"),
}


@pytest.mark.parametrize(("slices", "line"), REFUSED.values(), ids=REFUSED)
def test_refusals(slices, line) -> None:
    networks = {"a": network(10), "other": network(10, stem="h."), "flat": network(10, layers=0)}
    networks |= {"wide": network(10, size=2), "odd": network(10, others=("strange",))}
    named = {name: networks[name] for name, *_ in slices}
    with pytest.raises((UsageError, ValueError), match=line):
        stack(named, *slices)


def test_the_configuration_has_the_number_of_layers_and_what_is_of_each() -> None:
    slices = [Slice(network="a", layers=(0, 2)), Slice(network="b", layers=(1, 2))]
    config = {"num_hidden_layers": 3, "layer_types": ["x", "y", "z"], "architectures": ["A", "B", "C"]}
    wanted = config | {"num_hidden_layers": 3, "layer_types": ["x", "y", "y"]}
    assert sliced_config(slices, config) == wanted
    assert sliced_config(slices[:1], {"n_layer": 5}) == {"n_layer": 2}
    with pytest.raises(CheckpointError, match="the configuration of a has none of num_hidden_layers, n_layer"):
        sliced_config(slices, {})
