"""Recipes as a user gives them: by options, in TOML, in mergekit's YAML; a base network; what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import roundweave as rw
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.tasks.matching import find_units
from roundweave.tasks.merging.averages.base import Average, Versions
from roundweave.tasks.merging.averages.task_vectors import TaskArithmetic, Ties
from tests.flows.command.in_process import said
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import same_bits

MINE = mine.__file__
PARTS = ("a", "b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base network, and two that were changed a little."""
    folder = tmp_path_factory.mktemp("recipes")
    torch.manual_seed(0)
    base = {name: tensor.clone() for name, tensor in mine.layers().state_dict().items()}
    save_file(base, folder / "base.safetensors")
    for name in PARTS:
        changed = {n: t + 0.02 * torch.randn_like(t) for n, t in base.items()}
        save_file(changed, folder / f"{name}.safetensors")
    return folder


def merged(folder: Path, out: str, **fields: object) -> dict[str, torch.Tensor]:
    """The tensors of the file that a merge writes."""
    given = {"networks": tuple(f"{folder}/{name}.safetensors" for name in PARTS), "model": f"{MINE}:layers"}
    given |= {"input": "2x6", "match": "none", "executor": "inline", "out": f"{folder}/{out}.safetensors"}
    rw.merge(rw.MergeConfig(**given | fields))
    return load_file(folder / f"{out}.safetensors")


def states(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [load_file(folder / f"{name}.safetensors") for name in (*PARTS, "base")]


def by_hand(folder: Path, average: Average, coefficients: tuple[float, ...]) -> dict[str, torch.Tensor]:
    """Each tensor's average of the two networks and their base."""
    first, second, start = states(folder)
    return {n: average(Versions(n, [first[n], second[n]], coefficients, start[n])) for n in start}


YAML = """
merge_method: ties
base_model: base.safetensors
models:
  - {model: a.safetensors, parameters: {weight: 0.6, density: 0.5}}
  - {model: b.safetensors, parameters: {weight: 0.4, density: 0.25}}
parameters: {lambda: 0.9}
"""
TOML = """
networks = ["a.safetensors", "b.safetensors"]
base = "base.safetensors"
average = "ties"
coefficients = "0.6,0.4"
density = "0.5,0.25"
scaling = 0.9
match = "none"
"""


@pytest.mark.parametrize(("name", "text"), [("said.yml", YAML), ("said.toml", TOML)])
def test_the_command_reads_a_file_and_its_options_count_before_those(
    folder, monkeypatch, capsys, name, text
) -> None:
    monkeypatch.chdir(folder)
    (folder / name).write_text(text)
    for scaling, more in ((0.9, []), (0.5, ["--scaling", "0.5"])):
        said(capsys, "merge", name, "--out", f"{name}.pt", "--executor", "inline", "--force", *more)
        wanted = by_hand(folder, Ties(density=(0.5, 0.25), scaling=scaling), (0.6, 0.4))
        assert same_bits(read_checkpoint(f"{name}.pt"), wanted)


def test_layers_have_coefficients_of_their_own_negative_ones_too(folder) -> None:
    found = merged(folder, "layers", average="mean", layers={"layers.1": (2, -1)})
    first, second, _ = states(folder)
    assert torch.equal(found["layers.0.weight"], (first["layers.0.weight"] + second["layers.0.weight"]) / 2)
    torch.testing.assert_close(found["layers.1.bias"], 2 * first["layers.1.bias"] - second["layers.1.bias"])


def test_the_change_of_one_network_is_taken_out_of_the_base(folder) -> None:
    given = {"networks": (f"{folder}/a.safetensors",), "base": f"{folder}/base.safetensors"}
    found = merged(folder, "out_of", **given, average="task_arithmetic", coefficients=(-1,))
    first, _, start = states(folder)
    wanted = {name: 2 * tensor - first[name] for name, tensor in start.items()}
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_base_and_networks_in_other_orders_of_units_give_the_same_bits(folder) -> None:
    """All are brought to the order of the first network."""
    units = find_units(mine.layers(), mine.inputs())
    order = {name: torch.randperm(group.size) for name, group in units.groups.items()}
    for name in ("b", "base"):
        shuffled = units.permute(load_file(folder / f"{name}.safetensors"), order)
        save_file({n: t.contiguous() for n, t in shuffled.items()}, folder / f"{name}-shuffled.safetensors")
    ties = {"average": "ties", "density": 0.5, "match": "weights"}
    plain = merged(folder, "plain", base=f"{folder}/base.safetensors", **ties)
    networks = (f"{folder}/a.safetensors", f"{folder}/b-shuffled.safetensors")
    for out, given in (("base", {}), ("all", {"networks": networks})):
        found = merged(folder, f"{out}-found", base=f"{folder}/base-shuffled.safetensors", **given, **ties)
        assert same_bits(found, plain)


@pytest.fixture(scope="module")
def scored(folder: Path) -> MergeResult:
    places = tuple(f"{folder}/{name}.safetensors" for name in PARTS)
    given = {"networks": places, "model": f"{MINE}:layers", "data": f"{MINE}:data", "points": 3}
    given |= {"average": "task_arithmetic", "base": f"{folder}/base.safetensors", "coefficients": (1, -1)}
    given |= {"match": "weights", "executor": "inline", "root": f"{folder}/runs", "name": "scored"}
    return rw.merge(rw.MergeConfig(**given))


def test_a_recipe_is_scored_beside_the_means(folder, scored) -> None:
    assert scored.chosen == "merged, task_arithmetic"
    assert {"plain mean", "merged", "merged, task_arithmetic"} <= scored.scores.keys()
    assert scored.coefficients == (1, -1)
    stored = scored.run.round(1)
    assert same_bits(dict(stored.tensors), by_hand(folder, TaskArithmetic(), (1, -1)))
    assert stored.score == scored.scores[scored.chosen]
    assert scored.scores["plain mean"].loss != scored.scores[scored.chosen].loss


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_layers_that_are_equal_in_each_network_are_averaged_each_by_its_own_number(tmp_path, suffix) -> None:
    """As a layer is that was put in twice, and as matrices of zeros are."""
    places = [str(tmp_path / f"{name}.{suffix}") for name in ("one", "two", "out")]
    for value, place in enumerate(places[:2]):
        layers = {f"layers.{i}.weight": torch.full((2, 2), float(value)) for i in range(3)}
        write_checkpoint(place, layers)
    given = {"average": "mean", "coefficients": ((1.0, 0.0), (0.0, 1.0)), "match": "none", "executor": "inline"}
    rw.merge(rw.MergeConfig(networks=tuple(places[:2]), out=places[2], **given))
    assert [tensor.mean().item() for tensor in read_checkpoint(places[2]).values()] == [0, 0.5, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"average": "dare_linear", "density": (0.5,), "base": "base.pt"},
        {"average": "slerp", "t": (0.0, 1.0)},
        {"average": "mean", "layers": {"embed": (1.0, 0.0)}},
    ],
    ids=["dare", "slerp", "layers"],
)
def test_what_is_tied_in_files_stays_tied(tmp_path, monkeypatch, fields) -> None:
    """An embedding and a head that are one matrix, merged by their names, take the values of the first name."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("one", "two", "base")):
        torch.manual_seed(seed)
        first, second = torch.randn(2, 9, 4)
        state = {"embed.weight": first, "layers.0.weight": second, "layers.1.weight": 2 * second}
        torch.save(state | {"head.weight": first}, f"{name}.pt")
    networks = ("one.pt", "two.pt")
    rw.merge(rw.MergeConfig(networks=networks, match="none", out="out.pt", executor="inline", **fields))
    merged = torch.load("out.pt")
    assert torch.equal(merged["embed.weight"], merged["head.weight"])
    assert not torch.equal(merged["layers.0.weight"], torch.load("two.pt")["embed.weight"])
