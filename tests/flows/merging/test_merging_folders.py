"""Folders of transformers go into a merge, a training and an export, and come out as folders that it opens."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import roundweave as rw
from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.grams import write_gram_file
from roundweave.storage.checkpoints import folders
from roundweave.storage.errors import CheckpointError, ModelError, UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.pretrained import find_pretrained, inputs_by_kind, never_saved
from tests.flows.merging.tiny_folders import KINDS, folder, made, merge, quiet, transformers
from tests.rows import second
from tests.tasks.merging import mine

__all__ = ["folder", "quiet"]


def outputs(network: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return network.eval()(**inputs_by_kind(network)).logits


@pytest.mark.parametrize("kind", ["gpt2", *second(*sorted(KINDS.keys() - {"gpt2"}))])  # of tied names
def test_a_permuted_copy_merges_to_the_same_function(folder, tmp_path, kind) -> None:
    network = made(kind)
    units = find_units(network, inputs_by_kind(network)).without(never_saved(network))
    order = units.random(torch.Generator().manual_seed(1))
    copy = made(kind, seed=2)
    copy.load_state_dict(units.permute(network.state_dict(), order))
    out = tmp_path / "merged"
    result = merge(folder("a", network), folder("b", copy), out=str(out))
    merged, wanted = type(network).from_pretrained(out), outputs(network)
    assert result.moved[1] > 0.5
    assert (outputs(merged) - wanted).abs().max() <= 1e-6 * wanted.std()
    names = [set(load_file(tmp_path / place / "model.safetensors")) for place in ("a", "merged")]
    assert names[0] == names[1], "names are those of the files, and tied tensors are written once"


@pytest.mark.parametrize("kind", ["gpt2", *second("bert", "vit")])
def test_units_are_the_same_without_weights(folder, kind) -> None:
    network = made(kind)
    code, options = find_pretrained(f"transformers:{folder('a', network)}", {})
    spec = ModelSpec(code, (), 10, "float32", 0, json.dumps(options))
    outlined = spec.outlined()
    assert all(parameter.is_meta for parameter in outlined.parameters())
    assert find_units(outlined, inputs_by_kind(outlined)) == find_units(network.train(), inputs_by_kind(network))


def test_what_lies_beside_the_tensors_is_that_of_the_first_folder(folder, tmp_path) -> None:
    first, second = folder("a", "gpt2"), folder("b", "gpt2", seed=1)
    for place, text in ((first, "first"), (second, "second")):
        for name in ("merges.txt", "preprocessor_config.json", "chat_template.jinja"):
            (Path(place) / name).write_text(text)
        (Path(place) / "own.py").write_text("raise SystemExit")
        (Path(place) / "trainer_state.json").write_text("{}")
        (Path(place) / "optimizer.pt").write_bytes(b"")
    merge(first, second, match="none", out=str(tmp_path / "out"))
    written = {path.name: path for path in (tmp_path / "out").iterdir()}
    copied = {"merges.txt", "preprocessor_config.json", "chat_template.jinja"}
    ours = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert written.keys() == copied | ours
    assert {written[name].read_text() for name in copied} == {"first"}


def test_tokenizers_of_any_files_and_modules_lie_beside(folder, tmp_path) -> None:
    """Of sentence-transformers a pooling is copied if all have it, and one with tensors is refused."""
    first, second, out = Path(folder("a")), Path(folder("b", seed=1)), tmp_path / "out"
    files = {"source.spm": "s", "bpe.codes": "c", "1_Pooling/config.json": "{}"}
    files["modules.json"] = json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Normalize"}])
    for place, (name, text) in product((first, second), files.items()):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    merge(str(first), str(second), match="none", out=str(out))
    assert {name: (out / name).read_text() for name in files} == files
    (second / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(CheckpointError, match=r"differ in modules\.json"):
        merge(str(first), str(second), match="none", out=str(out), force=True)
    (first / "1_Pooling/model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is of a module of its own, which is not merged"):
        merge(str(first), str(second), match="none", out=str(out), force=True)


def test_files_of_all_tokenizers_are_known() -> None:
    for kind in transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES.values():
        with suppress(AttributeError, ImportError, ModuleNotFoundError, ValueError):
            names = getattr(transformers, kind or "").vocab_files_names.values()
            assert not [name for name in names if Path(name).suffix not in folders.BESIDE]


@pytest.mark.parametrize("match", ["none", *second("weights")])
def test_tensors_in_shards_of_bfloat16_are_averaged_in_their_type(folder, tmp_path, monkeypatch, match) -> None:
    first, second = (made("llama", seed).bfloat16() for seed in (0, 1))
    for name, network in (("a", first), ("b", second)):
        network.save_pretrained(tmp_path / name, max_shard_size="20KB")
    monkeypatch.setattr(folders.write_shards, "__defaults__", (20_000,))
    merge(str(tmp_path / "a"), str(tmp_path / "b"), match=match, out=str(tmp_path / "out"))
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    tensors = [load_file(tmp_path / "out" / name) for name in sorted(set(index["weight_map"].values()))]
    assert len(tensors) > 1
    assert index["metadata"]["total_size"] == sum(t.nbytes for shard in tensors for t in shard.values())
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.bfloat16}
    if match == "none":
        for name, tensor in opened.state_dict().items():
            mean = (first.state_dict()[name].float() + second.state_dict()[name].float()) / 2
            assert torch.equal(tensor, mean.bfloat16())


def test_another_type_stands_in_the_configuration(folder, tmp_path) -> None:
    merge(folder("a"), folder("b", seed=1), dtype="float16", match="none", out=str(tmp_path / "out"))
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float16"
    opened = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float16}


def test_a_folder_is_replaced_only_if_a_merge_wrote_it(folder, tmp_path) -> None:
    networks = folder("a"), folder("b", seed=1)
    out = str(tmp_path / "out")
    merge(*networks, match="none", out=out)
    with pytest.raises(UsageError, match="exists already; give another name, or --force"):
        merge(*networks, match="none", out=out)
    merge(*networks, match="none", out=out, force=True, coefficients=(1, 0))
    same = load_file(tmp_path / "a/model.safetensors")
    assert all(torch.equal(tensor, same[name]) for name, tensor in load_file(f"{out}/model.safetensors").items())
    with pytest.raises(UsageError, match="has files that no export wrote; give another folder"):
        merge(*networks, match="none", out=networks[1], force=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_folders_and_a_stored_merge_need_no_folder_later(folder, tmp_path) -> None:
    pair = folder("a", "llama"), folder("b", "llama", seed=1)
    result = merge(*pair, name="kept", root=str(tmp_path / "runs"))
    for place in pair:
        shutil.rmtree(place)
    network = rw.open_run("kept", tmp_path / "runs").network()
    assert type(network) is transformers.LlamaForCausalLM
    assert outputs(network).shape[-1] == 30
    assert result.run is not None


def test_a_training_starts_from_a_folder_and_is_exported_to_one(train, folder, tmp_path, capsys) -> None:
    from roundweave.flows.plugins.exports.folders import write_folder

    start = folder("start")
    data = f"{mine.__file__}:tokens"
    run = train(data=data, start_from=start, rounds=1, partitions=2, local_epochs=1, batch_size=4, name="tuned")
    first = run.round(0).network()
    assert type(first) is transformers.BertForSequenceClassification
    saved = transformers.BertForSequenceClassification.from_pretrained(start).state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in first.state_dict().items())
    shutil.rmtree(start)
    assert run.replay("all").identical
    out = write_folder(run, run.round(1), str(tmp_path / "out"))
    opened = transformers.BertForSequenceClassification.from_pretrained(out)
    assert torch.equal(outputs(opened), outputs(run.round(1).network()))


def test_a_training_from_a_folder_without_its_configuration_needs_a_model(train, folder) -> None:
    start = folder("start")
    (Path(start) / "config.json").unlink()
    with pytest.raises(
        UsageError, match=r"start has no config\.json, which says what network it has; give --model"
    ):
        train(data=f"{mine.__file__}:tokens", start_from=start, rounds=1, partitions=2, name="tuned")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_files_of_gram_matrices_are_of_folders_as_they_are_saved(folder, tmp_path, dtype) -> None:
    data = f"{mine.__file__}:tokens"
    pair = [folder(name, made("bert", seed).to(dtype)) for seed, name in enumerate("ab")]
    files = tuple(f"{place}.safetensors" for place in pair)
    for place, file in zip(pair, files, strict=True):
        write_gram_file(GramConfig(network=place, data=data, out=file))
    more = {"match": "weights", "average": "regmean", "root": str(tmp_path / "runs")}
    of_data, of_files = str(tmp_path / "of_data"), str(tmp_path / "of_files")
    merge(*pair, data=data, out=of_data, repair=False, points=2, **more)
    merge(*pair, grams=files[::-1], out=of_files, **more)
    one, other = (load_file(f"{place}/model.safetensors") for place in (of_data, of_files))
    assert {tensor.dtype for tensor in other.values()} == {dtype}
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def changed(place: str, *without: str, **values: object) -> str:
    """A folder whose configuration has other values, or lacks some."""
    path = Path(place) / "config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if name not in without}
    path.write_text(json.dumps(kept | values))
    return place


def refusal(*networks: str, **fields: object) -> str:
    with pytest.raises((CheckpointError, UsageError, ModelError)) as caught:
        merge(*networks, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHANGED = [
    ({"auto_map": {"AutoModel": "own.Own"}}, "names code of its own (auto_map)"),
    ({"_attn_implementation": "them/kernels"}, "names code of others, them/kernels"),
    ({"quantization_config": {"bits": 4}}, "of few bits"),
    ({"num_attention_heads": 2}, "num_attention_heads is 2, but 4"),
    ({"intermediate_size": 48}, "intermediate_size is 48, but 40"),
    ({"hidden_act": "relu"}, "hidden_act is relu, but"),
]


@pytest.mark.parametrize("match", ["none", *second("weights")])
@pytest.mark.parametrize(("values", "words"), CHANGED)
def test_a_folder_of_another_configuration_is_refused(folder, tmp_path, match, values, words) -> None:
    other = changed(folder("other", seed=1), **values)
    assert words in refusal(folder("a"), other, out=str(tmp_path / "out"), match=match)


@pytest.mark.parametrize("match", ["none", *second("weights")])
def test_a_folder_that_is_broken_is_refused(folder, tmp_path, match) -> None:
    first, out = folder("a"), {"out": str(tmp_path / "out"), "match": match}

    def other(name: str, file: str = "model.safetensors", **fields: object) -> Path:
        return Path(folder(name, **fields)) / file

    changed(str(other("wide", "", intermediate_size=48)), "intermediate_size")
    other("broken", "config.json").write_text("{not JSON")
    short = other("short")
    short.write_bytes(short.read_bytes()[:-100])
    link = other("link")
    link.unlink()
    link.symlink_to(Path(first) / "model.safetensors")
    other("bare", "config.json").unlink()
    values = load_file(other("nan"))
    values["classifier.bias"][0] = torch.nan
    save_file(values, tmp_path / "nan/model.safetensors")
    for name, words in {
        "wide": "intermediate_size is 3072, but 40",
        "broken": "config.json is no JSON",
        "short": "is truncated, corrupt or no checkpoint",
        "link": "is a link that leads out of the folder",
        "bare": "bare has no config.json",
        "nan": "nan: 'classifier.bias' has 1 of 2 elements that are not finite",
    }.items():
        assert words in refusal(first, f"{tmp_path}/{name}", **out)
    assert not (tmp_path / "out").exists()


def test_a_network_that_nobody_knows_is_one_clear_line(folder, tmp_path) -> None:
    pair = [changed(folder(name), architectures=["Trainer"]) for name in "ab"]
    assert "has no architecture 'Trainer'" in refusal(*pair, out=str(tmp_path / "out"))
    pair = [changed(place, architectures=None) for place in pair]
    assert "names no architecture" in refusal(*pair, out=str(tmp_path / "out"))
    for place in pair:
        (Path(place) / "config.json").unlink()
    assert "no network has a config.json" in refusal(*pair, out=str(tmp_path / "out"))
    assert "no model is named" in refusal(*pair, out=str(tmp_path / "out.safetensors"))


@pytest.mark.parametrize(("dtype", "name"), [(torch.int32, "up.qweight"), (torch.float8_e4m3fn, "up.weight")])
def test_quantised_weights_that_differ_have_no_mean(tmp_path, dtype: torch.dtype, name: str) -> None:
    for file, value in (("a", 1), ("b", 2)):
        save_file({name: torch.full((2, 3), value).to(dtype)}, tmp_path / f"{file}.safetensors")
    files = [str(tmp_path / f"{file}.safetensors") for file in "ab"]
    assert "of quantised weights, which have no mean" in refusal(*files, match="none", out=str(tmp_path / "c.pt"))
    merge(files[0], files[0], match="none", out=str(tmp_path / "c.pt"))
    assert "a name of 300 characters" in refusal(*files, match="none", out=str(tmp_path / ("c" * 300)))
