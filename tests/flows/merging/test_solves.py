"""Merges whose layers are solved or distilled on examples of each network's own, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.grams import write_gram_file
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.errors import UsageError
from tests import training
from tests.flows.merging.test_merging import TENSORS, loaded, score
from tests.rows import second
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import same_bits

MINE = mine.__file__
DISJOINT = {"average": "auto", "match": "weights", "executor": "inline"}


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two networks, each of which was trained on five of the digits."""
    root = tmp_path_factory.mktemp("halves")
    shape = {"model": "mlp", "model_options": {"hidden": 64}, "partitions": 1, "local_epochs": 10, "rounds": 1}
    for seed, name in enumerate(("low", "high")):
        training.trained(root, data=f"{MINE}:{name}", **shape, seed=seed, name=name)
    return root


@pytest.fixture(scope="module")
def merge(halves: Path) -> Callable[..., MergeResult]:
    def run(*networks: str, **fields: object) -> MergeResult:
        given = DISJOINT | {"root": halves, "examples": 400, "points": 2} | fields
        return rw.merge(rw.MergeConfig(networks=networks or ("low@-1", "high@-1"), **given))

    return run


@pytest.fixture(scope="module")
def auto(merge) -> MergeResult:
    return merge(name="auto")


def tensors(result: MergeResult) -> TENSORS:
    return dict(result.run.round(1).tensors)


def test_a_solve_is_chosen_where_the_networks_saw_other_classes(auto, halves) -> None:
    candidates = ["merged", "merged, regmean", "merged, pleas"]
    assert [name for name in auto.scores if name.startswith("merged")] == candidates
    assert auto.chosen == min(candidates, key=lambda name: auto.scores[name].loss) != "merged"
    assert auto.scores[auto.chosen].accuracy > auto.scores["merged"].accuracy + 0.1
    assert auto.run.round(1).score == auto.scores[auto.chosen]
    assert not list(halves.glob(".merge-*"))


def test_the_network_that_is_kept_is_the_one_that_was_scored(auto) -> None:
    network = loaded(tensors(auto))
    images, labels = map(torch.as_tensor, mine.low()[1])
    with torch.no_grad():
        accuracy = (network(images).argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(auto.scores[auto.chosen].accuracy)


ASKED = ["fisher", *second("mean", "regmean", "pleas")]  # of the others auto tries each


@pytest.mark.parametrize("average", ASKED)
def test_each_can_be_asked_for(merge, auto, average) -> None:
    found = merge(average=average)
    name = {"mean": "merged"}.get(average, f"merged, {average}")
    assert found.chosen == name
    assert list(found.scores)[-1] == name
    if average == "fisher":  # auto leaves it out
        assert found.scores[name].loss < auto.scores["merged"].loss
        assert name not in auto.scores
    else:
        assert found.scores[name] == auto.scores[name]


@pytest.mark.thorough
def test_data_may_be_given_for_each_network(merge, auto) -> None:
    each = (f"{MINE}:low", f"{MINE}:high")
    as_text, as_values = (merge(data=data, average="regmean") for data in (",".join(each), each))
    assert same_bits(tensors(as_text), tensors(as_values))
    assert as_text.scores["merged, regmean"].accuracy > auto.scores["merged"].accuracy + 0.1


def test_files_of_gram_matrices_give_the_bits_of_the_data(merge, halves, tmp_path) -> None:
    files = []
    for name in ("high", "low"):
        files.append(str(tmp_path / f"{name}.safetensors"))
        fields = {"network": f"{name}@-1", "root": str(halves), "examples": 400}
        told = write_gram_file(GramConfig(**fields, out=files[-1]))
        assert (told["examples"], set(told["layers"])) == (400, {"fc1.weight", "fc2.weight"})
        assert told["bytes"] < 100_000
    fields = {"average": "regmean", "input": "2x1x8x8", "model": "mlp", "model_options": {"hidden": 64}}
    without = merge(grams=tuple(files), **fields)
    assert without.scores == {}
    assert same_bits(tensors(without), tensors(merge(average="regmean")))


WORK = [{"distil": 20, "average": "pleas"}, {"match": "activations", "average": "best"}]
WORK += [{"within": True, "match": None, "average": None}]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{"average": "pleas"}, *WORK])
def test_the_number_of_processes_changes_no_bits(merge, client, fields) -> None:
    far = merge(executor="graph", scheduler=client.scheduler.address, **fields)
    near = merge(**fields)
    assert same_bits(tensors(far), tensors(near))
    assert (far.scores, far.paths, far.moved) == (near.scores, near.paths, near.moved)


@pytest.mark.thorough
def test_distilling_begins_with_what_was_chosen(merge, auto) -> None:
    found = merge(distil=100)
    assert found.chosen == list(found.scores)[-1] == f"{auto.chosen}, distilled"
    assert found.scores[found.chosen].loss < auto.scores[auto.chosen].loss
    assert {name: found.scores[name] for name in auto.scores} == auto.scores
    assert score(loaded(tensors(found)))[1] > 0.8


@pytest.mark.thorough
def test_a_distillation_that_does_harm_is_not_taken_by_auto(merge, auto) -> None:
    fields = {"distil": 20, "distil_lr": 1.0}
    found, asked = merge(**fields), merge(**fields, average=auto.chosen.removeprefix("merged, "))
    worse = f"{auto.chosen}, distilled"
    assert found.scores[worse].loss > auto.scores[auto.chosen].loss
    assert (found.chosen, asked.chosen) == (auto.chosen, worse)
    assert same_bits(tensors(found), tensors(auto))


@pytest.mark.thorough
def test_a_network_without_layers_is_averaged(merge, halves) -> None:
    fields = {"data": f"{MINE}:data", "model": f"{MINE}:Scale", "partitions": 1, "rounds": 1}
    for seed in (0, 1):
        training.trained(halves, **fields, seed=seed, name=f"scale{seed}")
    scales, fields = ("scale0@-1", "scale1@-1"), {"match": None, "average": None, "points": 3}
    assert merge(*scales, **fields).chosen == "merged"
    with pytest.raises(UsageError, match="no linear or convolutional layer"):
        merge(*scales, **fields | {"average": "pleas"})


def test_gram_matrices_need_data(halves, tmp_path) -> None:
    rw.open_run("low", halves).round(-1).save(tmp_path / "low.safetensors")
    fields = {"network": str(tmp_path / "low.safetensors"), "model": "mlp"}
    with pytest.raises(UsageError, match="give --data"):
        write_gram_file(GramConfig(**fields, out=str(tmp_path / "g.safetensors")))
    with pytest.raises(UsageError, match=r"must end in \.safetensors"):
        GramConfig(**fields, out=str(tmp_path / "g.pt"))


def test_units_within_a_network_are_paired_too(merge, auto) -> None:
    found = merge(within=True, match="activations", average="mean")
    matrices = [found.run.round(1).match(number).permutation["fc1"] for number in range(2)]
    assert torch.equal(torch.cat(matrices, 1).sum(1), torch.full((64,), 2.0))
    assert max(matrix.sum(1).max().item() for matrix in matrices) == 2.0
    assert found.scores["merged"].accuracy > found.scores["plain mean"].accuracy
    assert list(found.paths) == ["plain mean"]
