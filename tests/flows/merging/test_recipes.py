"""Recipes as a user gives them: by options, in TOML, in mergekit's YAML; a base network; what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import roundweave as rw
from roundweave.flows.config.files import read_recipe
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.errors import UsageError
from roundweave.tasks.matching import find_units
from roundweave.tasks.merging.averages.base import Versions
from roundweave.tasks.merging.averages.task_vectors import TaskArithmetic, Ties
from tests.commands import plain_command

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)])

    def forward(self, inputs):
        for layer in self.layers[:-1]:
            inputs = layer(inputs).relu()
        return self.layers[-1](inputs)

def model():
    return Net()

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)
"""
NAMES = [f"layers.{i}.{what}" for i in range(3) for what in ("weight", "bias")]
PARTS = ("a", "b")


class Net(nn.Module):
    """That of `MODEL`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            inputs = layer(inputs).relu()
        return self.layers[-1](inputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base network, two that were changed a little, and their architecture."""
    folder = tmp_path_factory.mktemp("recipes")
    torch.manual_seed(0)
    base = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
    save_file(base, folder / "base.safetensors")
    for name in PARTS:
        changed = {n: t + 0.02 * torch.randn_like(t) for n, t in base.items()}
        save_file(changed, folder / f"{name}.safetensors")
    (folder / "mine.py").write_text(MODEL)
    return folder


def merged(folder: Path, out: str, **fields: object) -> dict[str, torch.Tensor]:
    """The tensors of the file that a merge writes."""
    given = {
        "networks": tuple(f"{folder}/{name}.safetensors" for name in PARTS),
        "model": f"{folder}/mine.py:model",
    }
    given |= {"input": "2x6", "match": "none", "executor": "inline", "out": f"{folder}/{out}.safetensors"}
    rw.merge(rw.MergeConfig(**given | fields))
    return load_file(folder / f"{out}.safetensors")


def states(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [load_file(folder / f"{name}.safetensors") for name in (*PARTS, "base")]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return sorted(one) == sorted(other) and all(torch.equal(one[name], other[name]) for name in one)


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
coefficients = [0.6, 0.4]
density = [0.5, 0.25]
scaling = 0.9
match = "none"
"""


def test_yaml_toml_and_options_give_the_same_bits(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)  # mergekit's paths go from the current folder
    (folder / "ties.yml").write_text(YAML)
    (folder / "ties.toml").write_text(TOML)
    base = f"{folder}/base.safetensors"
    options = {"average": "ties", "base": base, "coefficients": "0.6,0.4", "density": "0.5,0.25", "scaling": "0.9"}
    found = merged(folder, "options", **options)
    first, second, start = states(folder)
    average = Ties(density=(0.5, 0.25), scaling=0.9)
    assert same(found, {n: average(Versions(n, [first[n], second[n]], (0.6, 0.4), start[n])) for n in NAMES})
    for file in ("ties.yml", "ties.toml"):
        assert same(merged(folder, file, **read_recipe(file)), found), file
    monkeypatch.chdir(folder.parent)
    assert same(merged(folder, "moved", **read_recipe(str(folder / "ties.toml"))), found)  # from where the file is


def test_the_command_reads_files_of_both_kinds_and_its_options_count_before_theirs(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "said.yml").write_text(YAML)
    (folder / "said.toml").write_text(TOML)

    def command(file: str, *more: str) -> dict[str, torch.Tensor]:
        words = ("merge", file, "--out", "said.safetensors", "--executor", "inline", "--force", *more)
        told = subprocess.run(plain_command(*words), capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        return load_file("said.safetensors")

    first, second, start = states(folder)
    for file, scaling in (("said.yml", 0.9), ("said.toml", 0.5)):
        found = command(file, *(["--scaling", "0.5"] if scaling == 0.5 else []))
        average = Ties(density=(0.5, 0.25), scaling=scaling)
        assert same(found, {n: average(Versions(n, [first[n], second[n]], (0.6, 0.4), start[n])) for n in NAMES})


def test_layers_have_coefficients_of_their_own_negative_ones_too(folder) -> None:
    found = merged(folder, "layers", average="mean", layers={"layers.1": (2, -1)})
    first, second, _ = states(folder)
    assert torch.equal(found["layers.0.weight"], (first["layers.0.weight"] + second["layers.0.weight"]) / 2)
    torch.testing.assert_close(found["layers.1.bias"], 2 * first["layers.1.bias"] - second["layers.1.bias"])


def test_the_change_of_one_network_is_taken_out_of_the_base(folder) -> None:
    given = {"networks": (f"{folder}/a.safetensors",), "base": f"{folder}/base.safetensors"}
    found = merged(folder, "out_of", **given, average="task_arithmetic", coefficients=(-1,))
    first, _, start = states(folder)
    for name in NAMES:
        torch.testing.assert_close(found[name], 2 * start[name] - first[name], rtol=0, atol=1e-6)


def test_a_base_and_networks_in_other_orders_of_units_give_the_same_bits(folder) -> None:
    """All are brought to the order of the first network."""
    units = find_units(Net(), (torch.zeros(2, 6),))
    order = {name: torch.randperm(group.size) for name, group in units.groups.items()}
    for name in ("b", "base"):
        shuffled = units.permute(load_file(folder / f"{name}.safetensors"), order)
        save_file({n: t.contiguous() for n, t in shuffled.items()}, folder / f"{name}-shuffled.safetensors")
    ties = {"average": "ties", "density": 0.5, "match": "weights"}
    plain = merged(folder, "plain", base=f"{folder}/base.safetensors", **ties)
    networks = (f"{folder}/a.safetensors", f"{folder}/b-shuffled.safetensors")
    for out, given in (("base", {}), ("all", {"networks": networks})):
        found = merged(folder, f"{out}-found", base=f"{folder}/base-shuffled.safetensors", **given, **ties)
        assert same(found, plain)


@pytest.fixture(scope="module")
def scored(folder: Path) -> MergeResult:
    places = tuple(f"{folder}/{name}.safetensors" for name in PARTS)
    given = {"networks": places, "model": f"{folder}/mine.py:model", "data": f"{folder}/mine.py:data", "points": 3}
    given |= {"average": "task_arithmetic", "base": f"{folder}/base.safetensors", "coefficients": (1, -1)}
    return rw.merge(
        rw.MergeConfig(**given, match="weights", executor="inline", root=f"{folder}/runs", name="scored")
    )


def test_a_recipe_is_scored_beside_the_means(folder, scored) -> None:
    assert scored.chosen == "merged, task_arithmetic"
    assert {"plain mean", "merged", "merged, task_arithmetic"} <= scored.scores.keys()
    assert scored.coefficients == (1, -1)
    first, second, start = states(folder)
    wanted = {n: TaskArithmetic()(Versions(n, [first[n], second[n]], (1, -1), start[n])) for n in NAMES}
    stored = scored.run.round(1)
    assert all(torch.equal(torch.as_tensor(stored.tensors[name]), wanted[name]) for name in NAMES)
    assert stored.score == scored.scores[scored.chosen]
    mean = merged(folder, "mean", average="mean")
    network = Net()
    network.load_state_dict(mean)
    assert scored.scores["plain mean"].loss != scored.scores[scored.chosen].loss


BASED = {"base": "base.safetensors"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"average": "tie"}, "unknown average 'tie'; did you mean ties[?] There are auto, best"),
        ({"average": "ties"}, "average ties needs the network from which all were trained; give base"),
        ({"average": "slerp", **BASED}, "average slerp takes no base network; leave base out"),
        ({"average": "slerp", "networks": ("a", "b", "c")}, "Slerp takes 2 networks, not 3"),
        ({"average": "slerp", "coefficients": (1, 2)}, "average slerp has no option coefficients; it has t"),
        ({"average": "slerp", "t": 1.5}, "t = 1.5: Input should be less than or equal to 1"),
        ({"average": "dare_ties", "density": 0, **BASED}, "density = \\(0.0,\\): Input should be greater than 0"),
        (
            {"average": "dare_ties", "density": "0.5,1.5", **BASED},
            "density = .*: Input should be less than or equal",
        ),
        ({"average": "mean", "coefficients": "1,2,3"}, "2 networks need 2 coefficients, not 3"),
        ({"average": "mean", "coefficients": "1,-1"}, "with a sum that is not 0, not \\[1.0, -1.0\\]"),
        (
            {"average": "mean", "density": 0.5},
            "average mean has no option density; it has coefficients, layers, nor",
        ),
        ({"average": "regmean", "coefficients": "2,-1"}, "must be numbers, none negative and not all zero"),
        ({"t": 0.5}, "t is an option of averages; give one that has it: mean, slerp"),
        ({"base": "base.safetensors"}, "base is an option of averages"),
        ({"average": "mean", "networks": ("a",)}, "a merge takes two networks or more, not 1; or one with a base"),
        ({"average": "ties", "coefficients": "2,-1", **BASED}, "would undo the negative ones of \\[2.0, -1.0\\]"),
        ({"average": "slerp", "t": [{"filtre": "mlp", "value": 1}]}, "t = .*: it takes"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(fields, message) -> None:
    with pytest.raises(UsageError, match=message):
        rw.MergeConfig(**{"networks": ("a", "b"), "out": "c.safetensors"} | fields)


def test_a_layer_or_a_filter_of_no_tensor_is_refused(folder) -> None:
    with pytest.raises(UsageError, match=r"no tensor is of layer 'layer'; there are layers\.0"):
        merged(folder, "none", average="mean", layers={"layer": (1, 2)})
    with pytest.raises(UsageError, match="filter 'mpl' is in the name of no tensor"):
        merged(folder, "none", average="slerp", t=[{"filter": "mpl", "value": 0.1}, {"value": 0.5}])
    assert not (folder / "none.safetensors").exists()


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
        state = {
            "embed.weight": first,
            "layers.0.weight": second,
            "layers.1.weight": 2 * second,
            "head.weight": first,
        }
        torch.save(state, f"{name}.pt")
    networks = ("one.pt", "two.pt")
    rw.merge(rw.MergeConfig(networks=networks, match="none", out="out.pt", executor="inline", **fields))
    merged = torch.load("out.pt")
    assert torch.equal(merged["embed.weight"], merged["head.weight"])
    assert not torch.equal(merged["layers.0.weight"], torch.load("two.pt")["embed.weight"])
