"""What runs on the workers of a merge, and the run that it leaves: each against a plain evaluation by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from storage.rounds.commits import Score
from storage.runs.checkpoints import write_checkpoint
from storage.runs.run import open_run
from storage.values.digests import match_digest
from storage.values.state import Match
from tasks.data.partitions import Partitions
from tasks.data.sources.own import Own
from tasks.data.splits import Split
from tasks.matching.activations import activation_moments, summed
from tasks.matching.networks import Evidence, match_all, match_each
from tasks.matching.units import find_units
from tasks.merging.blends import Blend, Ensemble, Gallery, blended, fitted, score_blend
from tasks.merging.keeping import keep_merge
from tasks.merging.observing import observe
from tasks.networks.objective import ModelSpec, Objective
from tasks.user_code import find_code

MINE = """
import torch
from torch import nn

def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(600, 6, generator=generator)
    return inputs, (inputs[:, 0] + inputs[:, 1].relu() > 0).long() + (inputs[:, 2] > 0).long()

def normed():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.arange(6), requires_grad=False)
        self.fixed = nn.Linear(6, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)
    def forward(self, inputs):
        return self.head(self.fixed(inputs[:, self.order]).relu())

def counted():
    return Counted()
"""
TENSORS = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def gallery(own, tmp_path) -> Callable[..., Gallery]:
    """A gallery of a network of the file above, or of the mlp, on its data in four blocks."""
    mine = own(MINE)

    def make(
        model: str = "mlp", examples: int = 400, blocks: int = 4, batch: int = 25, **fields: object
    ) -> Gallery:
        code = model if model == "mlp" else find_code(f"{mine}:{model}")
        options = '{"hidden": 8}' if model == "mlp" else "{}"
        objective = Objective(ModelSpec(code, (6,), 3, "float32", 0, options), "cross_entropy")
        partitions = Partitions(Own(find_code(f"{mine}:data")), Split(blocks), held_out=0.25)
        inputs = partitions.load(0, 0).train.inputs[:batch]
        units = find_units(objective.model.build(), (inputs,))
        return Gallery(objective, partitions, units, examples, tmp_path)

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


def held_out(gallery: Gallery) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [gallery.partitions.load(0, block).held_out for block in range(gallery.partitions.split.partitions)]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])


def by_hand(gallery: Gallery, logits: torch.Tensor) -> Score:
    _, targets = held_out(gallery)
    right = (logits.argmax(1) == targets).float().mean().item()
    return Score(functional.cross_entropy(logits, targets).item(), {"accuracy": right}, len(targets))


def mlp(state: TENSORS, inputs: torch.Tensor) -> torch.Tensor:
    hidden = (inputs @ state["fc1.weight"].T + state["fc1.bias"]).clamp_min(0)
    return hidden @ state["fc2.weight"].T + state["fc2.bias"]


def same_bits(one: TENSORS, other: TENSORS) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Ensembles.


class Constant(nn.Module):
    """Gives the same outputs for every example."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(len(inputs), -1)


def test_an_ensemble_gives_the_logarithm_of_the_mean_probabilities() -> None:
    # Probabilities 0.8, 0.2 and 0.4, 0.6; one of them as logits with a constant added.
    one = Constant(math.log(8.0), math.log(2.0))
    other = Constant(math.log(0.4), math.log(0.6))
    found = Ensemble([one, other], logits=True)(torch.zeros(3, 1))
    assert found.shape == (3, 2)
    torch.testing.assert_close(found[0], torch.tensor([math.log(0.6), math.log(0.4)]))


def test_an_ensemble_that_is_not_of_logits_gives_the_mean() -> None:
    found = Ensemble([Constant(1.0, -2.0), Constant(4.0, 2.0)], logits=False)(torch.zeros(2, 1))
    assert found.tolist() == [[2.5, 0.0]] * 2


def test_an_ensemble_survives_logits_that_overflow_an_exponential() -> None:
    found = Ensemble([Constant(1000.0, 0.0), Constant(1000.0, 0.0)], logits=True)(torch.zeros(1, 1))
    assert found.tolist() == [[0.0, -1000.0]]


# Blends.


def test_the_score_of_a_weighted_mean_is_that_of_a_hand_evaluation(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    mean = {name: 0.25 * states[0][name] + 0.75 * states[1][name] for name in states[0]}
    inputs, _ = held_out(gallery)
    found = score_blend(gallery, [Blend(places, (1, 3))], 0)
    want = by_hand(gallery, mlp(mean, inputs))
    assert (found.accuracy, found.examples) == (pytest.approx(want.accuracy), want.examples)
    assert found.loss == pytest.approx(want.loss, rel=1e-5)


def test_layers_are_weighted_on_their_own(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    mixed = {name: states[name.startswith("fc2")][name] for name in states[0]}
    found = blended(gallery, Blend(places, (1, 0), layers=(("fc2", (0, 1)),))).state_dict()
    assert same_bits(dict(found), mixed)


def test_a_parent_scores_as_it_is_and_an_ensemble_by_mean_probabilities(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery, 3)
    inputs, _ = held_out(gallery)
    logits = [mlp(state, inputs) for state in states]
    blends = [Blend(places, (0, 1, 0)), Blend(places, (1, 1, 1), "ensemble")]
    parent, ensemble = (score_blend(gallery, blends, number) for number in range(2))
    assert parent.loss == pytest.approx(by_hand(gallery, logits[1]).loss, rel=1e-5)
    mean = torch.stack([one.softmax(1) for one in logits]).mean(0).log()
    assert ensemble.loss == pytest.approx(by_hand(gallery, mean).loss, rel=1e-5)
    assert ensemble.accuracy == pytest.approx(by_hand(gallery, mean).accuracy)


def test_a_blend_is_mixed_if_more_than_one_network_is_in_it() -> None:
    assert Blend(("a", "b"), (1, 1)).mixed
    assert not Blend(("a", "b"), (0, 2)).mixed
    assert Blend(("a", "b"), (1, 0), layers=(("fc1", (0, 1)),)).mixed
    assert not Blend(("a", "b"), (1, 0), layers=(("fc1", (3, 0)),)).mixed


def test_a_file_that_is_written_anew_is_read_anew(gallery, written) -> None:
    gallery = gallery()
    states, places = written(gallery)
    blend = Blend(places, (1, 0))
    assert same_bits(dict(blended(gallery, blend).state_dict()), states[0])
    other = {name: 2 * tensor for name, tensor in states[0].items()}
    write_checkpoint(places[0], other)
    assert same_bits(dict(blended(gallery, blend).state_dict()), other)


def test_a_run_that_went_on_is_read_anew(gallery, train) -> None:
    gallery = gallery()
    fields = {"data": gallery.partitions.source.code, "model_options": {"hidden": 8}, "name": "grows"}
    gallery = replace(gallery, root=train(rounds=1, **fields).path.parent)
    for rounds in (1, 2):
        run = train(rounds=rounds, **fields)
        found = dict(blended(gallery, Blend(("grows@-1",), (1.0,))).state_dict())
        assert same_bits(found, run.round(rounds).params)


def test_tensors_are_fitted_to_the_network(gallery) -> None:
    network = gallery("normed").objective.model.build()
    state = network.state_dict()
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    del half["1.num_batches_tracked"]
    found = fitted(half, state)
    assert [(n, t.dtype) for n, t in found.items()] == [(n, t.dtype) for n, t in state.items()]
    assert torch.equal(found["0.weight"], state["0.weight"].half().float())


# Repair.


def test_repaired_units_have_the_mean_deviation_and_mean_of_their_parents(gallery, written) -> None:
    gallery = gallery(examples=400)
    states, places = written(gallery)
    found = blended(gallery, Blend(places, (1, 3), repair=True)).state_dict()
    parts = [gallery.partitions.load(0, block).train.inputs[:100] for block in range(4)]
    before = [torch.cat(parts) @ state["fc1.weight"].T + state["fc1.bias"] for state in (*states, found)]
    deviations = [one.std(0, correction=0) for one in before]
    torch.testing.assert_close(deviations[2], 0.25 * deviations[0] + 0.75 * deviations[1])
    means = [one.mean(0) for one in before]
    torch.testing.assert_close(means[2], 0.25 * means[0] + 0.75 * means[1], rtol=1e-4, atol=1e-5)
    # The head's units are the outputs, which are nobody's to rescale.
    torch.testing.assert_close(
        found["fc2.weight"], 0.25 * states[0]["fc2.weight"] + 0.75 * states[1]["fc2.weight"]
    )


def test_repaired_statistics_are_those_of_the_merged_network_on_the_examples(gallery, written) -> None:
    gallery = gallery("normed", examples=400)
    states, places = written(gallery)
    found = blended(gallery, Blend(places, (1, 1), repair=True)).state_dict()
    inputs = torch.cat([gallery.partitions.load(0, block).train.inputs[:100] for block in range(4)])
    weight, bias = ((states[0][f"0.{kind}"] + states[1][f"0.{kind}"]) / 2 for kind in ("weight", "bias"))
    batches = (inputs @ weight.T + bias).chunk(2)
    torch.testing.assert_close(found["1.running_mean"], torch.stack([b.mean(0) for b in batches]).mean(0))
    torch.testing.assert_close(found["1.running_var"], torch.stack([b.var(0) for b in batches]).mean(0))


@pytest.mark.parametrize("examples", [250, 251, 450])
def test_no_number_of_examples_leaves_a_batch_of_one(gallery, written, examples) -> None:
    gallery = gallery("normed", examples=examples, blocks=1)
    _, places = written(gallery)
    assert score_blend(gallery, [Blend(places, (1, 1), repair=True)], 0) is not None


def test_a_parent_is_never_repaired(gallery, written) -> None:
    gallery = gallery("normed")
    states, places = written(gallery)
    found = blended(gallery, Blend(places, (0, 1), repair=True)).state_dict()
    assert same_bits(dict(found), states[1])


# Activations.


def test_the_sum_over_blocks_is_one_pass_over_their_examples(gallery, written) -> None:
    gallery = gallery(examples=400, blocks=4, batch=25)
    states, places = written(gallery, 3)
    pairs = [(0, 1), (0, 2), (1, 2)]
    parts = summed([observe(gallery, places, pairs, block) for block in range(4)])
    inputs = torch.cat([gallery.partitions.load(0, block).train.inputs[:100] for block in range(4)])
    whole = activation_moments(gallery.objective.model.build(), states, [inputs], gallery.units, pairs)
    assert parts.keys() == whole.keys() and whole
    for piece, moments in whole.items():
        assert parts[piece].samples == moments.samples == 400
        torch.testing.assert_close(parts[piece].sums, moments.sums, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(parts[piece].squares, moments.squares, rtol=1e-4, atol=1e-3)
        for pair in pairs:
            torch.testing.assert_close(parts[piece].products[pair], moments.products[pair], rtol=1e-4, atol=1e-3)


def test_the_moments_of_a_hidden_layer_by_hand(gallery, written) -> None:
    gallery = gallery(examples=50, blocks=1, batch=25)
    states, places = written(gallery)
    (found,) = [
        moments
        for piece, moments in summed([observe(gallery, places, [(0, 1)], 0)]).items()
        if moments.sums.shape == (2, 8)
    ][:1]
    inputs = gallery.partitions.load(0, 0).train.inputs[:50]
    before = [inputs @ state["fc1.weight"].T + state["fc1.bias"] for state in states]
    candidates = [before, [one.relu() for one in before]]
    assert any(torch.allclose(found.sums, torch.stack([o.sum(0) for o in c]), atol=1e-3) for c in candidates)
    assert any(torch.allclose(found.products[0, 1], c[0].T @ c[1], atol=1e-3) for c in candidates)


def test_a_block_with_too_few_examples_is_left_out(gallery, written) -> None:
    gallery = gallery(examples=99, blocks=4, batch=25)
    _, places = written(gallery)
    assert observe(gallery, places, [(0, 1)], 0) is None
    assert summed([None, None]) == {}
    enough = replace(gallery, examples=100)
    one = observe(enough, places, [(0, 1)], 0)
    assert summed([None, one, None]) == one


# The run that is kept.


def kept(gallery: Gallery, states: list[TENSORS], orders: list[TENSORS], path: Path) -> list[TENSORS]:
    """Keep a merge whose merged network is the last of the aligned ones; gives all aligned ones."""
    units = gallery.units
    aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
    matches = [
        Match(order, units.similarity(aligned[0], state)) for order, state in zip(orders, aligned, strict=True)
    ]
    network = gallery.objective.model.build()
    attributes = {"config": {"algorithm": "merge"}, "created": 1.0}
    keep_merge(path, network, states, matches, aligned[-1], attributes, Score(0.5, {"accuracy": 0.25}, 8))
    return aligned


@pytest.mark.parametrize("model", ["mlp", "normed"])
def test_the_stored_permutations_lead_to_the_aligned_networks_and_back(gallery, written, tmp_path, model) -> None:
    gallery = gallery(model)
    states, _ = written(gallery, 3)
    orders = match_all(Evidence(states, gallery.units))
    aligned = kept(gallery, states, orders, tmp_path / "runs" / "kept.zarr")
    run = open_run("kept")
    assert (run.status, run.done, run.partitions) == ("complete", 1, 3)
    assert run.round(1).score == Score(0.5, {"accuracy": 0.25}, 8)
    for number, state in enumerate(states):
        stored = run.round(1).match(number).permutation
        assert same_bits(dict(gallery.units.permute(state, stored)), aligned[number])
        assert same_bits(dict(gallery.units.permute(aligned[number], gallery.units.invert(stored))), state)
    assert any(not torch.equal(t, gallery.units.identity()[name]) for name, t in orders[1].items())
    merged = run.round(1).load_into(gallery.objective.model.build()).state_dict()
    assert same_bits(dict(merged), aligned[-1])
    first = run.round(0).load_into(gallery.objective.model.build()).state_dict()
    assert same_bits(dict(first), states[0])
    for name in run.round(1).params:
        direction = run.round(1).updates[name].values
        for number, state in enumerate(states):
            assert direction[number].tolist() == (states[0][name] - state[name]).tolist()


def test_a_similarity_is_the_cosine_between_the_weights_of_matched_units(gallery, written, tmp_path) -> None:
    gallery = gallery()
    states, _ = written(gallery)
    aligned = kept(gallery, states, match_all(Evidence(states, gallery.units)), tmp_path / "kept.zarr")

    def unit(state: TENSORS, number: int) -> torch.Tensor:
        weights = (state["fc1.weight"][number], state["fc1.bias"][number, None], state["fc2.weight"][:, number])
        return torch.cat(weights)

    found = open_run(tmp_path / "kept.zarr").round(1).similarities["fc1"]
    for number in range(8):
        want = functional.cosine_similarity(unit(aligned[0], number), unit(aligned[1], number), dim=0)
        assert found.values[1, number] == pytest.approx(want.item(), abs=1e-6)
    assert found.values[0].tolist() == pytest.approx([1.0] * 8)


def test_a_mixture_is_kept_as_a_matrix(gallery, written, tmp_path) -> None:
    gallery = gallery()
    states, _ = written(gallery)
    orders = match_each(Evidence(states, gallery.units), 2, 0.1)
    aligned = kept(gallery, states, orders, tmp_path / "soft.zarr")
    round = open_run(tmp_path / "soft.zarr").round(1)
    stored = round.match(1)
    assert stored.permutation["fc1"].shape == (8, 8)
    assert (stored.permutation["fc1"] > 0).sum(1).tolist() == [2] * 8
    torch.testing.assert_close(stored.permutation["fc1"].sum(1), torch.ones(8))
    assert same_bits(dict(gallery.units.permute(states[1], stored.permutation)), aligned[1])
    assert round.commit.updates[1].match == match_digest(stored)


def test_frozen_and_integer_parameters_are_kept(gallery, written, tmp_path) -> None:
    gallery = gallery("counted")
    states, _ = written(gallery)
    orders = [gallery.units.identity() for _ in states]
    network = gallery.objective.model.build()
    aligned = kept(gallery, states, orders, tmp_path / "counted.zarr")
    found = open_run(tmp_path / "counted.zarr").round(1).load_into(network).state_dict()
    assert same_bits(dict(found), aligned[-1])
    assert not torch.equal(found["fixed.weight"], states[0]["fixed.weight"])
    assert found["order"].dtype == torch.int64
