"""Merging runs whose batches a function makes, of inputs by name, as those of Hugging Face's networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import roundweave as rw
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.matching.units import find_units
from tests import training
from tests.rows import second
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine

MINE = mine.__file__
FIELDS = {"partitions": 1, "rounds": 1, "local_epochs": 1, "lr": 0.1, "batch_size": 16}
KINDS = {"own": {}, "normed": {"model_options": {"norm": True}, "collate": "fixed"}}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two runs of each kind."""
    root = tmp_path_factory.mktemp("named")
    for kind, fields in KINDS.items():
        given = {"data": "texts", "model": "by_name", "collate": "collate"} | fields
        code = {n: f"{MINE}:{v}" if isinstance(v, str) else v for n, v in given.items()}
        for seed in (0, 1):
            training.trained(root, **FIELDS, **code, seed=seed, name=f"{kind}{seed}")
    return root


@pytest.fixture
def merge(named: Path) -> Callable[..., MergeResult]:
    def run(*networks: str, **fields: Any) -> MergeResult:
        fields = {"average": "mean", "executor": "inline", "root": named, "points": 2} | fields
        return rw.merge(rw.MergeConfig(networks=networks, **fields))

    return run


def batch_of(examples: int, collate: Any = mine.collate) -> dict[str, torch.Tensor]:
    texts = mine.Texts(examples)
    return collate([texts[row] for row in range(examples)])


def outputs(state: dict[str, torch.Tensor]) -> torch.Tensor:
    network, batch = mine.by_name(), batch_of(60)
    network.load_state_dict(state)
    with torch.no_grad():
        return network.eval()(ids=batch["ids"], mask=batch["mask"])["logits"]


WAYS = [{"match": "weights"}, {"match": "activations"}, {"soft": 2, "match": "mixed"}, {"average": "best"}]


@pytest.mark.parametrize("fields", [{}, *second(*WAYS)], ids=str)
def test_a_merge_takes_the_runs_batches_and_its_loss(named, merge, fields) -> None:
    result = merge("own0@-1", "own1@-1", examples=400, **fields)
    states = [dict(rw.open_run(f"own{seed}", named).round(-1).tensors) for seed in (0, 1)]
    labels = batch_of(60)["labels"]
    for seed, state in enumerate(states):
        parent, stored = result.scores[f"parent own{seed}@-1"], rw.open_run(f"own{seed}", named).round(-1).score
        assert parent.loss == pytest.approx(stored.loss, rel=1e-5)
        by_hand = functional.cross_entropy(outputs(state), labels).item()
        assert parent.loss == pytest.approx(by_hand, rel=1e-5)
    mean = torch.stack([outputs(state).softmax(1) for state in states]).mean(0).log()
    assert result.scores["ensemble"].loss == pytest.approx(functional.cross_entropy(mean, labels).item(), rel=1e-5)
    merged = dict(result.run.round(1).tensors)
    loss = functional.cross_entropy(outputs(merged), labels).item()
    assert result.scores["merged"].loss == pytest.approx(loss, rel=1e-5)
    assert result.coverage > 0.5
    assert result.run.config["collate"]["name"] == "collate"


@pytest.mark.parametrize("blocks", [3, *second(1, 6)])
def test_a_permuted_network_is_found_by_batches_of_any_length(named, merge, tmp_path, blocks) -> None:
    """Blocks are padded to other lengths each, and to others than the examples by which units were found."""
    state = dict(rw.open_run("own0", named).round(-1).tensors)
    units = find_units(mine.by_name(), mine.named_inputs())
    order = units.random(torch.Generator().manual_seed(3))
    write_checkpoint(tmp_path / "turned.pt", units.permute(state, order))
    result = merge("own0@-1", str(tmp_path / "turned.pt"), match="activations", blocks=blocks, examples=600)
    found = result.run.round(1).match(1).permutation
    assert all(torch.equal(found[name], table) for name, table in units.invert(order).items())
    assert all(torch.equal(t, state[n]) for n, t in result.run.round(1).tensors.items())


def test_statistics_are_recomputed_of_inputs_by_name(named, merge) -> None:
    result = merge("normed0@-1", "normed1@-1", examples=240, blocks=1)
    assert list(result.scores)[-1] == "merged, repaired"
    merged = dict(result.run.round(1).tensors)
    network = mine.by_name(norm=True)
    network.load_state_dict(merged)
    batch = batch_of(240, mine.fixed)  # all of them, in whatever order
    with torch.no_grad():
        hidden = network.hidden((network.embed(batch["ids"]) * batch["mask"][..., None]).sum(1))
    torch.testing.assert_close(merged["norm.running_mean"], hidden.mean(0))
    torch.testing.assert_close(merged["norm.running_var"], hidden.var(0))


def test_units_of_padded_batches_are_rescaled_where_these_are_of_one_length(merge) -> None:
    with pytest.raises(DataError, match=r"a repair or a solve needs inputs of one length; .* or give --blocks 1"):
        merge("own0@-1", "own1@-1", repair=True, examples=240, blocks=6)
    assert "merged, repaired" in merge("own0@-1", "own1@-1", repair=True, examples=240, blocks=1).scores


def test_example_inputs_may_have_names(named, merge, tmp_path) -> None:
    places = [str(tmp_path / f"{seed}.safetensors") for seed in (0, 1)]
    for seed, place in enumerate(places):
        rw.open_run(f"own{seed}", named).round(-1).save(place)
    fields = {"model": f"{MINE}:by_name", "out": str(tmp_path / "out.safetensors")}
    without = merge(*places, input=f"{MINE}:named_inputs", **fields)
    assert (without.scores, without.function_error <= 1e-10) == ({}, True)
    asked = merge("own0@-1", "own1@-1", input=f"{MINE}:named_inputs", name="asked")
    assert asked.scores == {}, "with --input the run's data are not loaded"
    assert all(torch.equal(t, asked.run.round(1).tensors[n]) for n, t in read_checkpoint(fields["out"]).items())
    with pytest.raises(UsageError, match="must return a tuple of tensors or a dict of them, not dict"):
        merge(*places, input=f"{MINE}:odd", **fields | {"force": True})


@pytest.mark.parametrize("match", ["activations", *second("weights")])
def test_units_are_matched_in_rounds_of_inputs_by_name(train, match) -> None:
    code = {"data": f"{MINE}:texts", "model": f"{MINE}:by_name", "collate": f"{MINE}:collate"}
    fields = FIELDS | code | {"partitions": 3, "rounds": 2, "algorithm": "matched", "init": "per-partition"}
    run = train(**fields, match=match, name="rounds")
    assert "hidden" in run.round(1).permutations
    assert rw.open_run(run.path).replay("all", trust=True).identical
    assert rw.open_run(run.path).recombine(2, trust=True).rounds[0].identical
