"""The flow that merges: what it finds, what it keeps, and that it is the same however it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import roundweave as rw
from roundweave.flows.merging.result import MergeResult, barrier
from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import UsageError
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.networks.reference import Cnn, Mlp
from tests.rows import second
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import same_bits

Merge = Callable[..., MergeResult]
MINE = mine.__file__
TENSORS = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def merge(root: Path) -> Merge:
    """Merge networks under the root in this process."""

    def run(*networks: str, **fields: object) -> MergeResult:
        by_weights = {"match": "weights", "average": "mean", "repair": False}
        fields = {"executor": "inline", "root": root, "points": 3} | by_weights | fields
        return rw.merge(rw.MergeConfig(networks=networks, **fields))

    return run


@pytest.fixture(scope="module")
def two(merge: Merge) -> MergeResult:
    return merge("mlp0@-1", "mlp1@-1", name="two")


@pytest.fixture(scope="module")
def three(merge: Merge) -> MergeResult:
    return merge("mlp0@-1", "mlp1@-1", "mlp2@-1", name="three")


def mlp_units() -> UnitGroups:
    network = Mlp((1, 8, 8), 10, hidden=64)
    return find_units(network, (Partitions(Digits(), Split(1)).load(0, 0).inputs[:2],))


def loaded(tensors: TENSORS, network: torch.nn.Module | None = None) -> torch.nn.Module:
    network = network or Mlp((1, 8, 8), 10, hidden=64)
    network.load_state_dict(tensors)
    return network.eval()


def score(network: torch.nn.Module) -> tuple[float, float]:
    found = Partitions(Digits(), Split(1)).held_out_part(0, 0, 1)
    with torch.no_grad():
        outputs = network(found.inputs)
    right = (outputs.argmax(1) == found.targets).float().mean().item()
    return functional.cross_entropy(outputs, found.targets).item(), right


def merged(result: MergeResult) -> TENSORS:
    return dict(result.run.round(1).tensors)


# What a merge is.


def test_networks_trained_apart_merge_where_their_plain_mean_does_not(two, three) -> None:
    for result in (two, three):
        plain, found = result.scores["plain mean"], result.scores["merged"]
        assert found.accuracy > plain.accuracy
        assert found.loss < plain.loss / 2
        assert result.coverage == 0.75  # all tensors but the bias of the outputs
        assert result.function_error <= 1e-10
        assert result.moved[0] == 0.0
        assert min(result.moved[1:]) > 0.5
    assert two.barriers["merged"] < two.barriers["plain mean"] / 2
    parents = [f"parent mlp{i}@-1" for i in range(3)]
    assert list(three.scores) == [*parents, "ensemble", "plain mean", "merged"]
    assert three.paths == three.barriers == {}
    assert (two.coefficients, three.coefficients) == ((0.5, 0.5), (1 / 3, 1 / 3, 1 / 3))
    with pytest.raises(UsageError, match="two is a merge of networks, and has no examples"):
        open_run(two.run.address).label_counts()


def test_a_path_begins_and_ends_with_the_networks(two) -> None:
    for path in two.paths.values():
        assert path[0].loss == pytest.approx(two.scores["parent mlp0@-1"].loss, rel=1e-6)
        assert path[-1].loss == pytest.approx(two.scores["parent mlp1@-1"].loss, rel=1e-6)
        assert path[0].accuracy == two.scores["parent mlp0@-1"].accuracy
    assert two.paths["merged"][1] == two.scores["merged"]


def test_the_stored_merge_is_the_mean_of_the_permuted_networks(root, two, three) -> None:
    units = mlp_units()
    for result in (two, three):
        states = [read_checkpoint(f"mlp{i}@-1", root) for i in range(len(result.coefficients))]
        orders = [result.run.round(1).match(i).permutation for i in range(len(states))]
        aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
        assert same_bits(merged(result), average(aligned, [1] * len(states)))
        assert score(loaded(merged(result)))[1] == pytest.approx(result.scores["merged"].accuracy)
        for state, moved in zip(states, aligned, strict=True):
            assert score(loaded(moved))[0] == pytest.approx(score(loaded(state))[0], rel=1e-5)
        assert result.run.round(1).score == result.scores["merged"]
        assert result.run.partitions == len(states)


def test_merging_again_gives_the_same_bits(merge, two) -> None:
    again = merge("mlp0@-1", "mlp1@-1")
    assert again.run.digest == two.run.digest
    assert again.run.name != two.run.name


@pytest.mark.parametrize("weights", [*second(((1, 1, 1),)), (1, 3)])
def test_without_a_match_it_is_the_plain_mean_to_the_bit(root, merge, weights) -> None:
    networks = [f"mlp{number}@-1" for number in range(len(weights))]
    result = merge(*networks, match="none", coefficients=weights)
    assert result.scores["merged"] == result.scores["plain mean"]
    assert result.coefficients == tuple(each / sum(weights) for each in weights)
    assert same_bits(merged(result), average([read_checkpoint(place, root) for place in networks], weights))
    assert set(result.moved) == {0.0}


@pytest.mark.parametrize("fields", [{"match": "activations"}, *second({"match": "mixed"}, {"metric": "cosine"})])
def test_each_way_to_compare_beats_the_plain_mean(merge, fields) -> None:
    result = merge("mlp0@-1", "mlp1@-1", examples=800, **fields)
    assert result.scores["merged"].accuracy > result.scores["plain mean"].accuracy


def test_a_network_and_itself_in_another_order_merge_into_it(root, merge, tmp_path) -> None:
    state = read_checkpoint("mlp0@-1", root)
    units = mlp_units()
    order = units.random(torch.Generator().manual_seed(5))
    write_checkpoint(tmp_path / "turned.safetensors", units.permute(state, order))
    result = merge("mlp0@-1", str(tmp_path / "turned.safetensors"))
    assert same_bits(merged(result), state)
    assert torch.equal(result.run.round(1).match(1).permutation["fc1"], units.invert(order)["fc1"])
    np.testing.assert_allclose(result.run.round(1).similarities["fc1"], 1, rtol=1e-5)
    assert result.barriers["merged"] == pytest.approx(0, abs=1e-6)


def test_the_best_point_is_the_best_of_its_path_and_what_is_kept(root, merge) -> None:
    result = merge("mlp0@-1", "mlp1@-1", average="best", points=5)
    path = result.paths["merged"]
    assert len(path) == 5
    best = max(path, key=lambda score: (score.accuracy, -score.loss))
    assert result.scores["merged"] == best == result.run.round(1).score
    step = path.index(best) / 4
    assert result.coefficients == (1 - step, step)
    assert score(loaded(merged(result)))[0] == pytest.approx(best.loss, rel=1e-5)


# Repair.


def test_the_statistics_of_a_merged_cnn_are_recomputed(root, merge) -> None:
    result = merge("cnn0@-1", "cnn1@-1", repair=True, examples=500)
    assert list(result.scores)[-2:] == ["merged", "merged, repaired"]
    assert result.run.round(1).score == result.scores["merged, repaired"]
    assert result.scores["merged, repaired"].loss < result.scores["merged"].loss
    assert set(result.paths) == {"plain mean", "merged", "merged, repaired"}
    network = result.run.round(1).load_into(Cnn((1, 8, 8), 10, channels=8)).eval()
    assert score(network)[0] == pytest.approx(result.scores["merged, repaired"].loss, rel=1e-4)
    seen = network.norm1.num_batches_tracked.item()
    assert seen == 2, "batches of 250: statistics are of the examples, not of the training"


# Where networks come from, and go to.


@pytest.mark.thorough
def test_the_statistics_of_a_solved_cnn_are_recomputed(merge) -> None:
    found = merge("cnn0@-1", "cnn1@-1", average="regmean", match=None, repair=None, examples=5000, points=2)
    assert found.scores["merged, regmean"].loss < found.scores["merged"].loss
    state, images = merged(found), Partitions(Digits(), Split(1)).load(0, 0).inputs
    hidden = functional.conv2d(images, state["conv1.weight"], state["conv1.bias"], padding=1)
    torch.testing.assert_close(state["norm1.running_mean"], hidden.mean((0, 2, 3)), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("suffix", [".safetensors", *second(".pt")])
def test_a_file_and_a_stored_round_are_one(root, merge, two, tmp_path, suffix) -> None:
    places = [str(tmp_path / f"{i}{suffix}") for i in range(2)]
    for i, place in enumerate(places):
        write_checkpoint(place, read_checkpoint(f"mlp{i}@2", root))
    result = merge(*places, model="mlp", model_options={"hidden": 64}, data="digits")
    assert result.run.digest == two.run.digest
    assert list(result.scores.values()) == list(two.scores.values())
    assert result.paths == two.paths


@pytest.mark.thorough
def test_a_run_says_what_a_file_beside_it_leaves_open(root, merge, two, tmp_path) -> None:
    write_checkpoint(tmp_path / "first.pt", read_checkpoint("mlp0@-1", root))
    result = merge(str(tmp_path / "first.pt"), "mlp1@-1")
    assert result.run.digest == two.run.digest
    assert result.run.config["model_options"] == {"hidden": 64}


def test_the_file_is_the_scored_network(merge, tmp_path) -> None:
    out = tmp_path / "merged.pt"
    result = merge("mlp0@-1", "mlp1@-1", out=str(out), name="kept")
    assert (result.out, result.plot) == (str(out), str(tmp_path / "merged.png"))
    assert (tmp_path / "merged.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    loss, accuracy = score(loaded(read_checkpoint(out)))
    assert (loss, accuracy) == pytest.approx((result.scores["merged"].loss, result.scores["merged"].accuracy))
    assert same_bits(read_checkpoint(out), merged(result))


@pytest.fixture
def files(tmp_path) -> Callable[..., tuple[str, ...]]:
    """Checkpoints of one of the networks of `mine` with random weights."""

    def write(function: str = "layers", change: Callable[[TENSORS], TENSORS] = dict) -> tuple[str, ...]:
        places = tuple(str(tmp_path / f"{function}{seed}.pt") for seed in range(2))
        for seed, place in enumerate(places):
            torch.manual_seed(seed)
            torch.save(change(getattr(mine, function)().state_dict()), place)
        return places

    return write


@pytest.mark.parametrize("given", ["2x6", *second(f"{MINE}:inputs")])
def test_a_module_of_ones_own_needs_no_data(merge, files, tmp_path, given) -> None:
    places, out = files(), str(tmp_path / "own.safetensors")
    result = merge(*places, model=f"{MINE}:layers", out=out, input=given, name=f"bare{given.count(':')}")
    assert (result.scores, result.paths, result.plot, result.run.round(1).score) == ({}, {}, None, None)
    units, states = find_units(mine.layers(), mine.inputs()), [torch.load(place) for place in places]
    orders = [result.run.round(1).match(i).permutation for i in range(2)]
    aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
    assert same_bits(read_checkpoint(out), average(aligned, (1, 1)))


@pytest.mark.parametrize("fields", [{"input": "2x6"}, *second({"data": f"{MINE}:data"})])
def test_tied_tensors_are_averaged_as_one_and_stay_tied_in_a_torch_file(merge, files, tmp_path, fields) -> None:
    places, out = files("tied"), str(tmp_path / "out.pt")
    given = {"model": f"{MINE}:tied", "match": "none", "coefficients": (1, 0), "name": f"tied-{min(fields)}"}
    result = merge(*places, out=out, **fields, **given)
    written, first = torch.load(out), torch.load(places[0])
    assert written["4.weight"].data_ptr() == written["2.weight"].data_ptr()
    assert torch.equal(written["4.weight"], first["2.weight"])
    assert same_bits(written, dict(result.run.round(1).tensors))


def test_networks_that_differ_in_what_the_inputs_do_not_reach_are_not_matched(merge, files) -> None:
    given = {"model": f"{MINE}:autoencoder", "input": "2x6"}
    same = files("autoencoder", lambda s: s | {n: torch.ones_like(t) for n, t in s.items() if "spread" in n})
    assert merge(*same, **given, name="same").moved[1] > 0
    differing = files("autoencoder")
    with pytest.raises(UsageError, match=r"spread\.weight may read units that are matched.* --match none"):
        merge(*differing, **given)
    assert merge(*differing, **given, match="none", name="differing").moved == (0, 0)


@pytest.mark.thorough
def test_a_repaired_network_has_the_same_bits_with_any_number_of_threads(merge, files) -> None:
    places, digests, before = files("wide"), set(), torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        fields = {"model": f"{MINE}:wide", "data": f"{MINE}:data", "repair": True, "name": f"wide{threads}"}
        digests.add(merge(*places, **fields).run.digest)
    torch.set_num_threads(before)
    assert len(digests) == 1


@pytest.mark.thorough
def test_statistics_saved_without_their_count_merge_by_weights_without_data(merge, files) -> None:
    places = files("normed", lambda s: {n: t for n, t in s.items() if not n.endswith("tracked")})
    result = merge(*places, model=f"{MINE}:normed", input="2x6", match=None, repair=None)
    assert (result.run.config["match"], result.run.config["repair"]) == ("weights", False)
    assert merge(*places, model=f"{MINE}:normed", data=f"{MINE}:data").scores["merged"].accuracy is not None


@pytest.mark.parametrize(
    ("given", "wanted"), [("float16", "float64"), *second(("bfloat16", "float32"), ("float64", "float32"))]
)
def test_checkpoints_of_another_precision_merge_in_that_of_the_network(merge, files, given, wanted) -> None:
    places = files("layers", lambda s: {n: t.to(getattr(torch, given)) for n, t in s.items()})
    result = merge(*places, model=f"{MINE}:layers", data=f"{MINE}:data", match="activations", dtype=wanted)
    assert {str(t.dtype) for t in result.run.round(1).params.values()} == {f"torch.{wanted}"}


def test_a_merge_into_a_file_leaves_nothing_else(root, merge, tmp_path) -> None:
    before = sorted(root.iterdir())
    out = tmp_path / "merged.safetensors"
    result = merge("mlp0@-1", "mlp1@-1", out=str(out), average="best", repair=True)
    assert result.run is None
    assert sorted(root.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged.png", "merged.safetensors"]


# What examples allow is done by default.


@pytest.mark.parametrize(
    ("kind", "fields", "match", "repair"),
    [
        ("cnn", {"examples": 200, "points": 2}, "mixed", True),
        *second(("mlp", {"examples": 400}, "mixed", False)),  # without statistics
        *second(("mlp", {"metric": "l2"}, "weights", False)),  # which mixed has not
    ],
)
def test_with_data_networks_are_matched_by_both_and_statistics_recomputed(
    merge, kind, fields, match, repair
) -> None:
    result = merge(f"{kind}0@-1", f"{kind}1@-1", match=None, repair=None, **fields)
    assert (result.run.config["match"], result.run.config["repair"]) == (match, repair)
    assert list(result.scores)[-1] == ("merged, repaired" if repair else "merged")


# The barrier, by hand.


@pytest.mark.parametrize(
    ("losses", "ends", "rise"),
    [
        ([1, 4, 1], None, 3.0),
        ([0, 2, 2], None, 1.0),  # the line goes through 1 in the middle
        ([0, 0, 3, 3], None, 1.0),  # through 0, 1, 2, 3
        ([4, 1, 0], None, 0.0),  # below the line all the way
        ([1, 3, 5], [1, 2, 1], 4.0),  # a mixture's own end is worse than the second network
    ],
)
def test_a_barrier_is_the_rise_above_the_line_between_the_networks_as_they_came(losses, ends, rise) -> None:
    assert barrier(losses, ends) == pytest.approx(rise)


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def written(folder: Path, seed: int, weights: torch.dtype, biases: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    drawn = mine.layers().state_dict()
    state = {name: t.to(weights if name.endswith("weight") else biases) for name, t in drawn.items()}
    save_file(state, folder / f"{seed}.safetensors")
    return state


@pytest.mark.parametrize("suffix", ["safetensors", *second("pt")])
@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((BF16, BF16), (BF16, BF16), (BF16, BF16)),
        ((BF16, FP32), (BF16, FP32), (BF16, FP32)),  # weights of one type, biases of another
        ((BF16, BF16), (FP16, BF16), (FP32, BF16)),  # neither holds the numbers of the other
        ((FP64, FP64), (FP32, FP32), (FP64, FP64)),
    ],
)
def test_a_merged_file_has_the_types_that_hold_both_networks(tmp_path, first, second, wanted, suffix) -> None:
    states = [written(tmp_path, seed, *types) for seed, types in enumerate((first, second))]
    places, out = tuple(str(tmp_path / f"{seed}.safetensors") for seed in (0, 1)), tmp_path / f"out.{suffix}"
    fields = {"networks": places, "model": f"{mine.__file__}:layers", "input": "2x6", "match": "none"}
    rw.merge(rw.MergeConfig(**fields, out=str(out), executor="inline"))
    for name, tensor in read_checkpoint(out).items():
        dtype = wanted[0] if name.endswith("weight") else wanted[1]
        mean = ((states[0][name].double() + states[1][name].double()) / 2).to(dtype)
        assert (name, tensor.dtype) == (name, dtype)
        torch.testing.assert_close(tensor, mean, rtol=1e-6 if dtype in (FP32, FP64) else 0, atol=0)
