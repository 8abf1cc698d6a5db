"""The flow that merges: what it finds, what it keeps, and that it is the same however it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import roundweave as rw
from roundweave.flows.merging.flow import merge_flow
from roundweave.flows.merging.result import MergeResult, barrier
from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.storage.runs.listing import list_runs
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.networks.reference import Cnn, Mlp
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging.by_hand import same_bits

pytestmark = pytest.mark.prefect

Merge = Callable[..., MergeResult]
TENSORS = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def merge(root: Path) -> Merge:
    """Merge networks under the root in this process, by the flow's function alone or with Prefect's engine."""

    def run(*networks: str, engine: bool = False, **fields: object) -> MergeResult:
        by_weights = {"match": "weights", "average": "mean", "repair": False}
        fields = {"executor": "inline", "root": root, "points": 3} | by_weights | fields
        return (rw.merge if engine else merge_flow.fn)(rw.MergeConfig(networks=networks, **fields))

    return run


@pytest.fixture(scope="module")
def two(merge: Merge) -> MergeResult:
    return merge("mlp0@-1", "mlp1@-1", points=11, name="two", engine=True)


@pytest.fixture(scope="module")
def three(merge: Merge) -> MergeResult:
    return merge("mlp0@-1", "mlp1@-1", "mlp2@-1", name="three")


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    found = Partitions(Digits(), Split(1)).load(0, 0).held_out
    return found.inputs, found.targets


def units_of(network: torch.nn.Module) -> UnitGroups:
    return find_units(network, (Partitions(Digits(), Split(1)).load(0, 0).train.inputs[:2],))


def loaded(tensors: TENSORS, network: torch.nn.Module | None = None) -> torch.nn.Module:
    network = network or Mlp((1, 8, 8), 10, hidden=64)
    network.load_state_dict(tensors)
    return network.eval()


def score(network: torch.nn.Module) -> tuple[float, float]:
    inputs, targets = held_out()
    with torch.no_grad():
        outputs = network(inputs)
    return functional.cross_entropy(outputs, targets).item(), (outputs.argmax(1) == targets).float().mean().item()


def merged(result: MergeResult) -> TENSORS:
    network = Mlp((1, 8, 8), 10, hidden=64)
    return dict(result.run.round(1).load_into(network).state_dict())


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


def test_the_rows_of_two_and_of_three(two, three) -> None:
    parents = [f"parent mlp{i}@-1" for i in range(3)]
    assert list(two.scores) == [*parents[:2], "ensemble", "plain mean", "merged"]
    assert list(three.scores) == [*parents, "ensemble", "plain mean", "merged"]
    assert {name: len(path) for name, path in two.paths.items()} == {"plain mean": 11, "merged": 11}
    assert three.paths == three.barriers == {}
    assert two.coefficients == (0.5, 0.5)
    assert three.coefficients == (1 / 3, 1 / 3, 1 / 3)


def test_a_path_begins_and_ends_with_the_networks(two) -> None:
    for path in two.paths.values():
        assert path[0].loss == pytest.approx(two.scores["parent mlp0@-1"].loss, rel=1e-6)
        assert path[-1].loss == pytest.approx(two.scores["parent mlp1@-1"].loss, rel=1e-6)
        assert path[0].accuracy == two.scores["parent mlp0@-1"].accuracy
    assert two.paths["merged"][5] == two.scores["merged"]


def test_the_score_of_a_parent_is_that_of_its_run(root, two) -> None:
    # Of the second it is not: its seed held out other examples than the first one's, by which all are scored.
    want = open_run("mlp0", root).round(-1).score
    found = two.scores["parent mlp0@-1"]
    assert (found.accuracy, found.examples) == (want.accuracy, want.examples)
    assert found.loss == pytest.approx(want.loss, rel=1e-5)


def test_the_stored_merge_is_the_mean_of_the_permuted_networks(root, two, three) -> None:
    units = units_of(Mlp((1, 8, 8), 10, hidden=64))
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


def test_a_merge_has_no_labels_of_partitions(two) -> None:
    with pytest.raises(UsageError, match="two was made of networks, not of examples"):
        open_run(two.run.address).label_counts()


def test_merging_again_gives_the_same_bits_and_so_does_a_cluster(merge, two) -> None:
    again = merge("mlp0@-1", "mlp1@-1")
    assert again.run.digest == two.run.digest
    assert again.run.name != two.run.name
    fields = {"match": "activations", "examples": 400, "average": "best", "points": 2}
    inline = merge("mlp0@-1", "mlp1@-1", **fields)
    cluster = merge("mlp0@-1", "mlp1@-1", executor="graph", workers=1, **fields)
    assert cluster.run.digest == inline.run.digest
    assert (cluster.scores, cluster.paths, cluster.moved) == (inline.scores, inline.paths, inline.moved)


def test_without_a_match_it_is_the_plain_mean_to_the_bit(root, merge) -> None:
    networks = ("mlp0@-1", "mlp1@-1", "mlp2@-1")
    result = merge(*networks, match="none")
    assert result.scores["merged"] == result.scores["plain mean"]
    states = [read_checkpoint(place, root) for place in networks]
    assert same_bits(merged(result), average(states, [1] * len(networks)))
    assert set(result.moved) == {0.0}


def test_three_networks_are_all_matched_to_the_first(merge) -> None:
    result = merge("mlp0@-1", "mlp1@-1", "mlp2@-1", together="first")
    assert result.scores["merged"].accuracy > result.scores["plain mean"].accuracy
    assert result.moved[0] == 0.0


@pytest.mark.parametrize("fields", [{"match": "activations"}, {"match": "mixed"}, {"metric": "cosine"}])
def test_each_way_to_compare_beats_the_plain_mean(merge, fields) -> None:
    result = merge("mlp0@-1", "mlp1@-1", examples=800, **fields)
    assert result.scores["merged"].accuracy > result.scores["plain mean"].accuracy


def test_a_network_and_itself_in_another_order_merge_into_it(root, merge, tmp_path) -> None:
    state = read_checkpoint("mlp0@-1", root)
    units = units_of(Mlp((1, 8, 8), 10, hidden=64))
    order = units.random(torch.Generator().manual_seed(5))
    write_checkpoint(tmp_path / "turned.safetensors", units.permute(state, order))
    result = merge("mlp0@-1", str(tmp_path / "turned.safetensors"))
    assert same_bits(merged(result), state)
    assert torch.equal(result.run.round(1).match(1).permutation["fc1"], units.invert(order)["fc1"])
    np.testing.assert_allclose(result.run.round(1).similarities["fc1"], 1, rtol=1e-5)
    assert result.barriers["merged"] == pytest.approx(0, abs=1e-6)


def test_coefficients(root, merge) -> None:
    result = merge("mlp0@-1", "mlp1@-1", match="none", coefficients=(1, 3))
    states = [read_checkpoint(f"mlp{i}@-1", root) for i in range(2)]
    assert result.coefficients == (0.25, 0.75)
    assert same_bits(merged(result), average(states, (1, 3)))


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
    assert result.scores["merged, repaired"].loss < result.scores["merged"].loss
    assert set(result.paths) == {"plain mean", "merged", "merged, repaired"}
    network = result.run.round(1).load_into(Cnn((1, 8, 8), 10, channels=8)).eval()
    assert score(network)[0] == pytest.approx(result.scores["merged, repaired"].loss, rel=1e-4)
    seen = network.norm1.num_batches_tracked.item()
    assert seen == 2, "batches of 250: statistics are of the examples, not of the training"


def test_the_units_of_a_merged_mlp_are_rescaled(root, merge) -> None:
    result = merge("mlp0@-1", "mlp1@-1", repair=True)
    plain = merge("mlp0@-1", "mlp1@-1")
    one, other = merged(result), merged(plain)
    assert torch.equal(one["fc2.weight"], other["fc2.weight"])
    factors = one["fc1.weight"] / other["fc1.weight"]
    scale = factors.nanmedian(1, keepdim=True).values
    torch.testing.assert_close(one["fc1.weight"], scale * other["fc1.weight"], rtol=1e-4, atol=1e-6)
    assert (scale > 1).float().mean() > 0.8, "a mean of two units varies less than they do"
    assert result.run.round(1).score == result.scores["merged, repaired"]
    assert result.scores["merged"] == plain.scores["merged"]


# Where networks come from, and go to.


def test_a_file_of_either_kind_and_a_stored_round_are_one(root, merge, two, tmp_path) -> None:
    for suffix in (".pt", ".safetensors"):
        places = [str(tmp_path / f"{i}{suffix}") for i in range(2)]
        for i, place in enumerate(places):
            write_checkpoint(place, read_checkpoint(f"mlp{i}@6", root))
        result = merge(*places, model="mlp", model_options={"hidden": 64}, data="digits", points=11)
        assert result.run.digest == two.run.digest
        assert list(result.scores.values()) == list(two.scores.values())
        assert result.paths == two.paths


def test_a_run_says_what_a_file_beside_it_leaves_open(root, merge, two, tmp_path) -> None:
    write_checkpoint(tmp_path / "first.pt", read_checkpoint("mlp0@-1", root))
    result = merge(str(tmp_path / "first.pt"), "mlp1@-1", points=11)
    assert result.run.digest == two.run.digest
    assert result.run.config["model_options"] == {"hidden": 64}


def test_the_file_is_the_scored_network(merge, tmp_path) -> None:
    out = tmp_path / "merged.pt"
    result = merge("mlp0@-1", "mlp1@-1", out=str(out), name="kept")
    assert result.out == str(out)
    assert Path(result.plot) == tmp_path / "merged.png"
    assert (tmp_path / "merged.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    loss, accuracy = score(loaded(read_checkpoint(out)))
    assert loss == pytest.approx(result.scores["merged"].loss, rel=1e-5)
    assert accuracy == pytest.approx(result.scores["merged"].accuracy)
    assert same_bits(read_checkpoint(out), merged(result))


OWN = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 2))

def normed():
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2))

def wide():
    return nn.Sequential(nn.Linear(5, 700), nn.ReLU(), nn.Linear(700, 600), nn.BatchNorm1d(600), nn.Linear(600, 2))

def tied():
    network = model().extend([nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)])
    network[8].weight = network[6].weight
    return network

def inputs():
    return (torch.zeros(3, 5),)

def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(300, 5, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()
"""


@pytest.fixture
def files(own, tmp_path) -> Callable[..., tuple[str, tuple[str, ...]]]:
    """The file above, and checkpoints of one of its networks with random weights."""
    mine = own(OWN)

    def write(function: str = "model", change: Callable[[TENSORS], TENSORS] = dict) -> tuple[str, tuple[str, ...]]:
        namespace: dict[str, object] = {}
        exec(OWN, namespace)
        places = []
        for seed in range(2):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                state = namespace[function]().state_dict()
            places.append(str(tmp_path / f"{function}{seed}.pt"))
            torch.save(change(state), places[-1])
        return mine, tuple(places)

    return write


@pytest.mark.parametrize("given", ["2x5", "{mine}:inputs"])
def test_a_module_of_ones_own_needs_no_data(merge, files, tmp_path, given) -> None:
    mine, places = files()
    out = str(tmp_path / "own.safetensors")
    fields = {"input": given.replace("{mine}", mine), "name": f"bare{given.count(':')}"}
    result = merge(*places, model=f"{mine}:model", out=out, **fields)
    assert (result.scores, result.paths, result.plot) == ({}, {}, None)
    assert result.run.round(1).score is None
    namespace: dict[str, object] = {}
    exec(OWN, namespace)
    network = namespace["model"]()
    units = find_units(network, (torch.zeros(2, 5),))
    states = [torch.load(place) for place in places]
    orders = [result.run.round(1).match(i).permutation for i in range(2)]
    assert sorted(orders[1]) == sorted(units.groups) and len(orders[1]) == 2
    aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
    assert same_bits(read_checkpoint(out), average(aligned, (1, 1)))
    examples = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    for state, moved in zip(states, aligned, strict=True):
        one, other = (loaded(tensors, namespace["model"]())(examples) for tensors in (state, moved))
        torch.testing.assert_close(one, other)


def test_a_merge_may_be_merged_with_its_first_network(merge, files) -> None:
    mine, places = files()
    merge(*places, model=f"{mine}:model", input="2x5", name="bare")
    again = merge("bare@0", "bare@1", input="2x5", match="none")
    assert again.run.done == 1
    merge(*places, model=f"{mine}:model", data=f"{mine}:data", name="scored")
    again = merge("scored@0", "scored@1", match="none")
    assert again.scores["parent scored@1"].accuracy is not None


@pytest.mark.parametrize("fields", [{"input": "2x5"}, {"data": "{mine}:data"}], ids=["unscored", "scored"])
def test_tied_tensors_are_averaged_as_one_and_stay_tied_in_a_torch_file(merge, files, tmp_path, fields) -> None:
    mine, places = files("tied")
    fields = {name: value.replace("{mine}", mine) for name, value in fields.items()}
    fields |= {"model": f"{mine}:tied", "match": "none", "coefficients": (1, 0), "name": f"tied-{min(fields)}"}
    result = merge(*places, out=str(tmp_path / "out.pt"), **fields)
    written, first = torch.load(tmp_path / "out.pt"), torch.load(places[0])
    assert written["8.weight"].data_ptr() == written["6.weight"].data_ptr()
    assert torch.equal(written["8.weight"], first["6.weight"])
    assert same_bits(written, dict(result.run.round(1).tensors))


def test_a_repaired_network_has_the_same_bits_with_any_number_of_threads(merge, files) -> None:
    mine, places = files("wide")
    fields, before = {"model": f"{mine}:wide", "data": f"{mine}:data", "repair": True}, torch.get_num_threads()
    digests = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        digests.add(merge(*places, **fields, name=f"wide{threads}").run.digest)
    torch.set_num_threads(before)
    assert len(digests) == 1


def test_statistics_saved_without_their_count_merge(merge, files) -> None:
    mine, places = files("normed", lambda s: {n: t for n, t in s.items() if not n.endswith("tracked")})
    result = merge(*places, model=f"{mine}:normed", data=f"{mine}:data")
    assert result.scores["merged"].accuracy is not None


@pytest.mark.parametrize(
    ("given", "wanted"), [("bfloat16", "float32"), ("float64", "float32"), ("float16", "float64")]
)
def test_checkpoints_of_another_precision_merge_in_that_of_the_network(merge, files, given, wanted) -> None:
    mine, places = files("model", lambda s: {n: t.to(getattr(torch, given)) for n, t in s.items()})
    result = merge(*places, model=f"{mine}:model", data=f"{mine}:data", match="activations", dtype=wanted)
    assert {str(t.dtype) for t in result.run.round(1).params.values()} == {f"torch.{wanted}"}


def test_a_merge_into_a_file_leaves_nothing_else(root, merge, tmp_path) -> None:
    before = sorted(root.iterdir())
    out = tmp_path / "merged.safetensors"
    result = merge("mlp0@-1", "mlp1@-1", out=str(out), average="best", repair=True)
    assert result.run is None
    assert sorted(root.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged.png", "merged.safetensors"]


# What examples allow is done by default.


def test_with_data_networks_are_matched_by_both_and_statistics_recomputed(merge) -> None:
    result = merge("cnn0@-1", "cnn1@-1", match=None, repair=None, examples=200, points=2)
    assert {name: result.run.config[name] for name in ("match", "repair")} == {"match": "mixed", "repair": True}
    assert list(result.scores)[-1] == "merged, repaired"
    assert result.coefficients == (0.5, 0.5)


def test_units_without_statistics_are_not_repaired_by_default(merge) -> None:
    result = merge("mlp0@-1", "mlp1@-1", match=None, repair=None, examples=400)
    assert (result.run.config["match"], result.run.config["repair"]) == ("mixed", False)
    assert "merged, repaired" not in result.scores
    by_distance = merge("mlp0@-1", "mlp1@-1", match=None, repair=None, metric="l2")
    assert by_distance.run.config["match"] == "weights", "a mixed match has no distance"


def test_without_data_networks_are_matched_by_weights(merge, files) -> None:
    mine, places = files("normed")
    result = merge(*places, model=f"{mine}:normed", input="2x5", match=None, repair=None)
    assert (result.run.config["match"], result.run.config["repair"]) == ("weights", False)


def test_networks_that_do_not_fit_leave_nothing_behind(root, merge, two) -> None:
    before = sorted(path.name for path in root.iterdir())
    with pytest.raises(CheckpointError, match=r"cnn0@-1 lacks 'fc1.weight'"):
        merge("mlp0@-1", "cnn0@-1")
    with pytest.raises(UsageError, match=r"two\.zarr exists already; give the merge another --name"):
        merge("mlp0@-1", "mlp1@-1", name="two")
    assert sorted(path.name for path in root.iterdir()) == before


def test_a_merge_is_listed_with_the_other_runs(root, two) -> None:
    assert "two" in list_runs(root).index
    assert repr(two.run).startswith("<Run two · complete · 1/1 rounds · merge · 2 partitions")


# The barrier, by hand.


@pytest.mark.parametrize(
    ("losses", "rise"),
    [
        ([1, 1], 0.0),
        ([1, 4, 1], 3.0),
        ([0, 2, 2], 1.0),  # the line goes through 1 in the middle
        ([0, 0, 3, 3], 1.0),  # through 0, 1, 2, 3
        ([4, 1, 0], 0.0),  # below the line all the way
    ],
)
def test_a_barrier_is_the_rise_above_the_line(losses, rise) -> None:
    assert barrier(losses) == pytest.approx(rise)


def test_a_path_that_ends_elsewhere_is_measured_against_the_networks_as_they_came() -> None:
    """A mixture's own end is worse than the second network: against the line between the two it rises by 4."""
    assert barrier([1.0, 3.0, 5.0]) == 0.0
    assert barrier([1.0, 3.0, 5.0], [1.0, 2.0, 1.0]) == 4.0
