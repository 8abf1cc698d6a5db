"""A round in a folder: what its card's own lines load has the bits of the stored network, without Roundweave."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import roundweave as rw
from roundweave.flows.plugins.exports.folders import write_folder
from roundweave.storage.errors import CheckpointError, NotARun
from tests.flows.command.in_process import refused, run

SMALL = {"rounds": 2, "local_steps": 2, "partitions": 2}

TOKENS = """
import torch
def data():
    tokens = torch.randint(0, 7, (60, 9), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1].clone(), tokens[:, 1:].clone()
"""

GPT2 = """
def model():
    from transformers import GPT2Config, GPT2LMHeadModel
    tokens = {"vocab_size": 7, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, **tokens))
"""

OWN = """
import torch
from helper import WIDTH
class Own(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        sizes, self.depth = (64, WIDTH, WIDTH), depth
        self.first, self.second, self.third = (torch.nn.Linear(size, WIDTH, bias=False) for size in sizes)
        self.third.weight = self.second.weight
        self.norm, self.last = torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 10)
        self.last.bias.requires_grad_(False)
        self.register_buffer("drawn", torch.randn(WIDTH), persistent=False)
    def forward(self, inputs):
        hidden = self.first(inputs.flatten(1)) + self.drawn
        for _ in range(self.depth): hidden = self.third(self.second(hidden).relu())
        return self.last(self.norm(hidden))
def model(depth=1): return Own(depth)
"""

PLAIN = """
import torch
def model(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""

SAVING = """
import torch
from pathlib import Path
class Saving(torch.nn.Linear):
    def forward(self, inputs): return super().forward(inputs.flatten(1))
    def save_pretrained(self, folder): torch.save(self.state_dict(), Path(folder, "own.pt"))
    @classmethod
    def from_pretrained(cls, folder):
        made = cls(64, 10)
        made.load_state_dict(torch.load(Path(folder, "own.pt")))
        return made
class Failing(Saving):
    def save_pretrained(self, folder):
        Path(folder, "half").write_text("half")
        raise OSError("the disk is full")
def model(): return Saving(64, 10)
def failing(): return Failing(64, 10)
"""


@pytest.fixture
def exported(train, tmp_path) -> Callable[..., rw.Run]:
    """Trains a round, and writes it into the folder `out`."""

    def go(**fields: object) -> rw.Run:
        run = train(**SMALL | {"rounds": 1}, name="first", **fields)
        write_folder(run, run.round(1), str(tmp_path / "out"))
        return run

    return go


def card(folder: Path) -> str:
    return (folder / "README.md").read_text()


def block(folder: Path) -> str:
    """The Python lines of a folder's card."""
    (lines,) = re.findall(r"^```python\n(.*?)^```$", card(folder), re.MULTILINE | re.DOTALL)
    return lines


def outputs_of(folder: Path, inputs: torch.Tensor) -> torch.Tensor:
    """What the network that a card's lines load gives in a process that cannot import Roundweave."""
    safetensors.torch.save_file({"inputs": inputs}, folder.parent / "inputs.safetensors")
    script = f"""
import sys
sys.modules["roundweave"] = None
{block(folder)}
torch.set_num_threads({torch.get_num_threads()})
from safetensors.torch import save_file
outputs = network(load_file("../inputs.safetensors")["inputs"])
outputs = getattr(outputs, "logits", outputs)
save_file({{"outputs": outputs.detach()}}, "../outputs.safetensors")
"""
    subprocess.run([sys.executable, "-P", "-c", script], cwd=folder, check=True)
    return safetensors.torch.load_file(folder.parent / "outputs.safetensors")["outputs"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_loads(stored: rw.Run, round: int, folder: Path, inputs: torch.Tensor) -> None:
    with torch.no_grad():
        outputs = stored.round(round).network()(inputs)
    assert torch.equal(outputs_of(folder, inputs), getattr(outputs, "logits", outputs))


@pytest.mark.thorough  # each by a process that imports torch; the first suite has a user's network, which has all
@pytest.mark.parametrize(
    ("model", "options", "dtype"),
    [
        *(("linear", {}, "float64"), ("mlp", {"hidden": 8}, "bfloat16")),
        *(("cnn", {"channels": 2}, "float32"), ("gpt", {"width": 8, "heads": 2}, "float32")),
    ],
)
def test_a_built_in_network_needs_no_roundweave(train, own, tmp_path, capsys, model, options, dtype) -> None:
    data = {"data": f"{own(TOKENS, 'tokens')}:data"} if model == "gpt" else {}
    built = train(**SMALL, **data, model=model, model_options=options, dtype=dtype, name="first")
    folder = tmp_path / "out" / "first of all"
    assert run(capsys, "export", "first@1", "--to", str(folder))[:2] == (0, f"first@1 is now in {folder}\n")
    assert (names(folder), names(folder.parent)) == (["README.md", "code", "model.safetensors"], [folder.name])
    inputs = torch.randint(0, 7, (5, 8)) if model == "gpt" else torch.rand(5, 1, 8, 8, dtype=getattr(torch, dtype))
    assert_loads(built, 1, folder, inputs)


def test_an_own_network_is_loaded_with_the_code_that_the_run_recorded(train, own, tmp_path) -> None:
    """Its weights are tied, its buffers kept, drawn anew or frozen, and its file has changed since."""
    own("WIDTH = 6\n", "helper")
    model = f"{own(OWN)}:model"
    stored = train(**SMALL, model=model, model_options={"depth": 3}, name="first")
    own("WIDTH = 7\n", "helper")
    write_folder(stored, stored.round(2), str(tmp_path / "out"))
    assert names(tmp_path / "out/code") == ["helper.py", "mine.py"]
    assert_loads(stored, 2, tmp_path / "out", torch.rand(5, 1, 8, 8))


@pytest.mark.thorough  # as above, from a package
def test_an_own_network_of_a_package_finds_what_lies_beside_it(exported, own, tmp_path) -> None:
    (tmp_path / "pack").mkdir()
    own("", "pack/__init__"), own("WIDTH = 5\n", "pack/width")
    own(OWN.replace("from helper", "from pack.width"), "pack/beside")
    run = exported(model=own("from . import width\nfrom beside import model", "pack/net") + ":model")
    assert_loads(run, 1, tmp_path / "out", torch.rand(5, 1, 8, 8))


def test_a_network_of_a_notebook_is_loaded_by_cloudpickle(exported, tmp_path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(PLAIN, namespace)
    run = exported(model=namespace["model"])
    assert (run.config["model"]["name"], run.replay("all").identical) == ("model", True)
    assert "This needs cloudpickle and Python 3" in card(tmp_path / "out")
    assert_loads(run, 1, tmp_path / "out", torch.rand(5, 1, 8, 8))


def test_a_network_that_needs_roundweave_says_so(exported, own, tmp_path) -> None:
    exported(model=f"{own(f'import roundweave as rw{PLAIN}')}:model")
    assert "This needs Roundweave, which its code imports; `model.onnx`" in card(tmp_path / "out")


def test_the_card_says_what_the_round_is(stored, train, tmp_path) -> None:
    stored("plain")
    later = train(**SMALL, name="second", start_from="plain@1", model_options={"hidden": 6})
    which = later.round(2)
    write_folder(later, which, str(tmp_path / "out"))
    for said in (
        *("# second, round 2", "| run | second, complete, fed_avg, 2 partitions |"),
        *(f"| chain | {which.chain} |", "| parent | plain@1 |", "| code | mlp |", f"torch {version('torch')}"),
        f"digest {later.attributes['data']['digest']} |",
        f"| loss | {which.score.loss:.4f} |\n| accuracy | {which.score.accuracy:.2%} |",
    ):
        assert said in card(tmp_path / "out")
    assert safetensors.safe_open(tmp_path / "out/model.safetensors", "pt").metadata()["chain"] == which.chain


@pytest.mark.parametrize("loaded", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_network_with_a_form_of_its_own_is_loaded_by_that(exported, own, tmp_path, loaded) -> None:
    run = exported(model=f"{own(SAVING)}:model")
    assert 'import_module("mine").Saving.from_pretrained(folder)' in block(tmp_path / "out")
    if loaded:
        assert_loads(run, 1, tmp_path / "out", torch.rand(5, 1, 8, 8))


@pytest.mark.thorough  # its process imports transformers
def test_a_network_of_transformers_is_loaded_by_transformers(exported, own, tmp_path) -> None:
    pytest.importorskip("transformers")
    place = own(TOKENS + GPT2)
    run = exported(data=f"{place}:data", model=f"{place}:model", loss="cross_entropy")
    assert "GPT2LMHeadModel.from_pretrained(folder)" in block(tmp_path / "out")
    assert {"config.json", "model.safetensors"} <= {*names(tmp_path / "out")}
    assert_loads(run, 1, tmp_path / "out", torch.randint(0, 7, (5, 8)))


@pytest.mark.parametrize("model", ["logistic", "cnn", "gpt"])
@pytest.mark.thorough
def test_onnx_gives_the_same_for_any_number_of_examples(train, own, tmp_path, capsys, model) -> None:
    onnx, reference = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference")
    data = {"data": f"{own(TOKENS, 'tokens')}:data"} if model == "gpt" else {}
    stored = train(**SMALL, **data, model=model, name="first")
    assert run(capsys, "export", "first@2", "--to", str(tmp_path / "out"), "--onnx")[0] == 0
    assert "`model.onnx` is the same network" in card(tmp_path / "out")
    read = onnx.load(tmp_path / "out/model.onnx")
    for count in (1, 3):
        inputs = torch.randint(0, 7, (count, 8)) if model == "gpt" else torch.rand(count, 1, 8, 8)
        given = {read.graph.input[0].name: inputs.numpy()}
        (outputs,) = reference.ReferenceEvaluator(read).run(None, given)
        np.testing.assert_allclose(outputs, stored.round(2).network()(inputs).detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_what_cannot_become_onnx_is_one_clear_line(train, own, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("onnxscript")
    source = "import torch\nclass Own(torch.nn.Linear):\n    def forward(self, x):\n"
    source += "        x = x.flatten(1)\n        return super().forward(x if float(x.sum()) > 0 else -x)\n"
    train(**SMALL, model=f"{own(source + 'def model(): return Own(64, 10)')}:model", name="first")
    arguments = ("export", "first@2", "--to", str(tmp_path / "out"), "--onnx")
    code, line = refused(capsys, *arguments)
    assert code == 1 and re.search("mine.py:model cannot become ONNX: .*data-dependent", line), line
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert refused(capsys, *arguments) == (2, "onnxscript is not installed; `pip install onnxscript`")
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob("*.partial")]


def test_the_card_names_columns_classes_and_validation_data(train, tmp_path) -> None:
    rows = [f"{number % 7},{number % 5},{'no' if number % 3 else 'yes'}" for number in range(60)]
    (file := tmp_path / "table.csv").write_text("\n".join(["age,height,label", *rows]))
    fields = {"data": f"csv:{file}", "validation": f"csv:{file}", "target": "label", "model": "logistic"}
    run = train(**SMALL | fields, name="table", root=tmp_path / "runs")
    write_folder(run, run.round(-1), str(tmp_path / "out"))
    text, digest = card(tmp_path / "out"), run.attributes["data"]["validation"]
    assert "| inputs | age, height |\n| classes | 0 no, 1 yes |\n" in text
    assert f"| validation | csv:{file}, 60 examples, digest {digest} |" in text


def test_a_network_that_nobody_can_build_is_tensors_and_a_card(stored, tmp_path, monkeypatch) -> None:
    def model(run: rw.Run, trust: bool = False) -> None:
        raise NotARun("it does not say how its network is built")

    plain = stored("plain")
    monkeypatch.setattr(rw.Run, "model", model)
    write_folder(plain, plain.round(2), str(tmp_path / "out"))
    assert names(tmp_path / "out") == ["README.md", "model.safetensors"]
    assert "`load_state_dict` of yours takes" in card(tmp_path / "out")
    with pytest.raises(NotARun, match="does not say"):
        write_folder(plain, plain.round(2), str(tmp_path / "out"), onnx=True)


def test_a_folder_is_replaced_by_force_and_only_if_an_export_wrote_it(stored, tmp_path, capsys) -> None:
    plain, folder, others = stored("plain"), tmp_path / "out", tmp_path / "others"
    folder.mkdir()
    assert run(capsys, "export", "plain@1", "--to", str(folder))[0] == 0
    (folder / "stale").touch()
    said = f"{folder} exists already; give another name, or --force to replace it"
    assert refused(capsys, "export", "plain@2", "--to", str(folder)) == (2, said)
    assert (folder / "stale").exists()
    assert run(capsys, "export", "plain@2", "--to", f"{folder}/", "--force")[0] == 0
    assert names(folder) == ["README.md", "code", "model.safetensors"]
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert torch.equal(tensors["fc1.weight"], plain.round(2).tensors["fc1.weight"])
    (tmp_path / "link").symlink_to(folder)
    assert run(capsys, "export", "plain@1", "--to", str(tmp_path / "link"), "--force")[0] == 0
    assert "# plain, round 1" in card(folder)
    others.mkdir()
    (others / "README.md").write_text("# Mine\n")
    for given in ((), ("--force",)):
        said = f"{others} has files that no export wrote; give another folder"
        assert refused(capsys, "export", "plain@2", "--to", str(others), *given) == (2, said)
    assert names(others) == ["README.md"]
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_an_export_that_fails_leaves_the_folder_as_it_was(stored, train, own, tmp_path) -> None:
    plain, folder = stored("plain"), tmp_path / "out"
    write_folder(plain, plain.round(2), str(folder))
    failing = train(**SMALL, model=f"{own(SAVING)}:failing", name="second")
    with pytest.raises(CheckpointError, match="cannot be written: OSError: the disk is full"):
        write_folder(failing, failing.round(2), str(folder))
    assert "# plain, round 2" in card(folder)
    assert [path.name for pattern in ("*.partial", ".*") for path in tmp_path.glob(pattern)] == []
    with pytest.raises(CheckpointError, match=r"/proc/none cannot be written"):
        write_folder(plain, plain.round(2), "/proc/none")


def test_folders_may_have_names_of_other_places(stored, capsys, monkeypatch, tmp_path) -> None:
    stored("plain")
    monkeypatch.chdir(tmp_path)
    for name in ("model.foo/", "mlfow/"):
        assert run(capsys, "export", "plain@2", "--to", name)[0] == 0


def test_a_run_from_elsewhere_is_built_only_with_trust(train, own, tmp_path, capsys) -> None:
    train(**SMALL, root=tmp_path / "theirs", model=f"{own(SAVING)}:model", name="first")
    there = f"{tmp_path}/theirs/first.zarr@2"
    arguments = ("export", there, "--to", str(tmp_path / "out"))
    code, line = refused(capsys, *arguments)
    assert code == 2 and "is outside" in line
    assert not (tmp_path / "out").exists()
    assert run(capsys, *arguments, "--trust")[0] == 0
