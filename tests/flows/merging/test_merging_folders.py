"""Folders of transformers go into a merge, a training and an export, and come out as folders that it opens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import roundweave as rw
from roundweave.flows.config.merging.merge import GramConfig
from roundweave.flows.merging.grams import write_gram_file
from roundweave.flows.merging.result import MergeResult
from roundweave.storage.checkpoints import folders
from roundweave.storage.errors import CheckpointError, ModelError, UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.networks.pretrained import find_pretrained, inputs_by_kind
from tests.flows.merging.tiny_folders import KINDS, folder, made, quiet, transformers
from tests.tasks.merging import mine

__all__ = ["folder", "quiet"]


def merge(*networks: str, **fields: object) -> MergeResult:
    return rw.merge(rw.MergeConfig(networks=networks, executor="inline", **fields))


def outputs(network: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return network.eval()(**inputs_by_kind(network)).logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_permuted_copy_merges_to_the_same_function(folder, tmp_path, kind) -> None:
    network = made(kind)
    units = find_units(network, inputs_by_kind(network))
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


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "vit"])
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


@pytest.mark.parametrize("match", ["none", "weights"])
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
    with pytest.raises(UsageError, match="is there already; give another name, or --force"):
        merge(*networks, match="none", out=out)
    merge(*networks, match="none", out=out, force=True, coefficients=(1, 0))
    same = load_file(tmp_path / "a/model.safetensors")
    assert all(torch.equal(tensor, same[name]) for name, tensor in load_file(f"{out}/model.safetensors").items())
    with pytest.raises(UsageError, match="holds what no export wrote; give another folder"):
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
    from roundweave.flows.exporting.folders import write_folder

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


def test_a_merge_scores_folders_on_data(folder, tmp_path) -> None:
    data = f"{mine.__file__}:tokens"
    pair = folder("a"), folder("b", seed=1)
    result = merge(*pair, data=data, out=str(tmp_path / "out"), points=3, root=str(tmp_path / "runs"))
    assert {"plain mean", "merged"} < result.scores.keys()


def test_a_training_from_a_folder_without_its_configuration_needs_a_model(train, folder) -> None:
    start = folder("start")
    (Path(start) / "config.json").unlink()
    with pytest.raises(
        UsageError, match=r"start has no config\.json, which says what network it has; give --model"
    ):
        train(data=f"{mine.__file__}:tokens", start_from=start, rounds=1, partitions=2, name="tuned")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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


def changed(place: str, **values: object) -> str:
    path = Path(place) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return place


def refusal(*networks: str, **fields: object) -> str:
    with pytest.raises((CheckpointError, UsageError, ModelError)) as caught:
        merge(*networks, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("match", ["none", "weights"])
def test_folders_that_cannot_be_merged_are_one_clear_line(folder, tmp_path, match) -> None:
    first, out = folder("a"), {"out": str(tmp_path / "out"), "match": match}

    def refused(name: str, **values: object) -> str:
        return refusal(first, changed(folder(name, seed=1), **values), **out)

    assert "names code of its own (auto_map)" in refused("code", auto_map={"AutoModel": "own.Own"})
    assert "names code of others, them/kernels" in refused("kernels", _attn_implementation="them/kernels")
    assert "of few bits" in refused("few", quantization_config={"bits": 4})
    assert "num_attention_heads is 2, but 4" in refused("heads", num_attention_heads=2)
    wide = folder("wide", intermediate_size=48)
    assert "intermediate_size is 48, but 40" in refusal(first, wide, **out)
    del_size = json.loads((Path(wide) / "config.json").read_text())
    del del_size["intermediate_size"]
    (Path(wide) / "config.json").write_text(json.dumps(del_size))
    assert "of shape (48,), but float of shape (40,) in the network" in refusal(first, wide, **out)
    broken = folder("broken")
    (Path(broken) / "config.json").write_text("{not JSON")
    assert "config.json is no JSON" in refusal(first, broken, **out)
    whole = Path(folder("short")) / "model.safetensors"
    whole.write_bytes(whole.read_bytes()[:-100])
    assert "is truncated, corrupt or no checkpoint" in refusal(first, str(whole.parent), **out)
    link = Path(folder("link")) / "model.safetensors"
    link.unlink()
    link.symlink_to(Path(first) / "model.safetensors")
    assert "is a link that leads out of the folder" in refusal(first, str(link.parent), **out)
    bare = folder("bare")
    (Path(bare) / "config.json").unlink()
    assert "bare has no config.json" in refusal(first, bare, **out)
    values = load_file(Path(folder("nan")) / "model.safetensors")
    values["classifier.bias"][0] = torch.nan
    save_file(values, tmp_path / "nan/model.safetensors")
    assert "nan: 'classifier.bias' has 1 of 2 elements that are not finite" in refusal(
        first, f"{tmp_path}/nan", **out
    )
    assert not (tmp_path / "out").exists()


def test_a_network_that_nobody_knows_is_one_clear_line(folder, tmp_path) -> None:
    pair = [changed(folder(name), architectures=["Trainer"]) for name in "ab"]
    assert "has no architecture 'Trainer'" in refusal(*pair, out=str(tmp_path / "out"))
    pair = [changed(place, architectures=None) for place in pair]
    assert "names no architecture" in refusal(*pair, out=str(tmp_path / "out"))
    for place in pair:
        (Path(place) / "config.json").unlink()
    assert "whose config.json none of the networks has" in refusal(*pair, out=str(tmp_path / "out"))
    assert "no model is named" in refusal(*pair, out=str(tmp_path / "out.safetensors"))
