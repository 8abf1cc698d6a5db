"""What is written is read to the same bits, nothing in a file is run, and what is wrong is one line."""

from __future__ import annotations

import json
import os
import pickle
import re
import string
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.utils.serialization import config

from roundweave.storage.checkpoints.files import SUFFIXES as WRITABLE
from roundweave.storage.checkpoints.files import WRAPPERS
from roundweave.storage.checkpoints.writing import check_place, write_checkpoint
from roundweave.storage.errors import CheckpointError, NotARun, RoundMissing, StoreDamaged, UsageError
from roundweave.storage.runs.opening import (
    check_checkpoint,
    fitted,
    lasting,
    open_checkpoint,
    outline,
    tied_in,
)
from tests.storage.checkpoints.reading import read_checkpoint
from tests.storage.conftest import plain, thorough

Tensors = dict[str, torch.Tensor]
DTYPES = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "complex64"]
DTYPES += ["int64", "uint8", "uint16", "bool"]
NAMES = st.text(string.ascii_letters + "._é", min_size=1, max_size=8)
SAME = thorough(".pth", ".bin")
"""Written and read as `.pt` is."""
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".pt", *SAME])


@st.composite
def drawn(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any bits: NaN, infinity and negative zero among them."""
    dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    top = 2 if dtype == torch.bool else 256
    bits = torch.randint(top, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    return tensor.mT if tensor.ndim > 1 and draw(st.booleans()) else tensor


def small() -> Tensors:
    return {"fc.weight": torch.arange(6.0).reshape(3, 2), "fc.bias": torch.ones(3), "seen": torch.tensor(7)}


def refused(place: object, *said: str, error: type[Exception] = CheckpointError, root: Path | None = None) -> str:
    """The text of the error, which is one line that starts with the place and says all of it."""
    with pytest.raises(error) as caught:
        read_checkpoint(place, root)
    text = str(caught.value)
    assert all(part in text for part in said), text
    if error is CheckpointError:
        assert text.startswith(str(place))
    return text


def written(place: Path, tensors: Tensors | None = None) -> Path:
    write_checkpoint(place, small() if tensors is None else tensors)
    return place


@SUFFIXES
@given(tensors=st.dictionaries(NAMES, drawn(), min_size=1, max_size=4))
@settings(max_examples=25)
def test_what_is_written_is_read_to_the_same_bits(tmp_path_factory, suffix, tensors) -> None:
    assume(not any(all(name.startswith(prefix) for name in tensors) for prefix in WRAPPERS))
    place = written(tmp_path_factory.mktemp("files") / f"a{suffix}", tensors)
    assert plain(read_checkpoint(place)) == plain(tensors)


@SUFFIXES
def test_tied_tensors_survive_and_stay_tied_where_the_format_can_say_so(tmp_path, suffix) -> None:
    weight = nn.Parameter(torch.arange(4.0).reshape(2, 2))
    tensors = {"a": weight, "b": weight, "turned": weight.T, "row": weight[0]}
    place = written(tmp_path / f"tied{suffix}", tensors)
    found = read_checkpoint(place)
    assert plain(found) == plain(tensors)
    if suffix != ".safetensors":
        stored = torch.load(place, weights_only=True)
        assert stored["a"].data_ptr() == stored["b"].data_ptr()
    assert not any(tensor.requires_grad for tensor in found.values())


def test_names_of_one_memory_that_is_read_in_two_ways_are_not_tied(tmp_path) -> None:
    weight = torch.randn(2, 3, dtype=torch.complex64)
    tensors = {"weight": weight, "tied": weight, "conjugate": weight.conj()}
    torch.save(tensors, tmp_path / "here.pt")
    for opened in (tensors, open_checkpoint(tmp_path / "here.pt")):
        assert tied_in([opened, opened]) == {"tied": "weight"}


@SUFFIXES
def test_conjugate_and_negated_views_are_written_as_their_values(tmp_path, suffix) -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    tensors = {"conj": numbers.conj(), "imag": numbers.conj().imag}
    found = read_checkpoint(written(tmp_path / f"a{suffix}", tensors))
    assert (found["conj"].tolist(), found["imag"].tolist()) == ([1 - 2j, 3 + 4j], [-2.0, 4.0])


@SUFFIXES
def test_a_view_is_written_without_the_rest_of_its_memory(tmp_path, suffix) -> None:
    assert written(tmp_path / f"a{suffix}", {"row": torch.zeros(1000, 1000)[3]}).stat().st_size < 10_000


@SUFFIXES
def test_a_link_to_a_file_without_a_suffix_is_read_by_its_own(tmp_path, suffix) -> None:
    written(tmp_path / f"b{suffix}").rename(tmp_path / "blob")
    (tmp_path / f"a{suffix}").symlink_to("blob")
    assert plain(read_checkpoint(lasting(tmp_path / f"a{suffix}"))) == plain(small())


@pytest.mark.parametrize(
    ("name", "tensors", "said"),
    [
        ("a.npz", small(), "ends in .safetensors, .pt, .pth, .bin, not in '.npz'"),
        ("a", small(), "not in ''"),
        ("a.pt", {}, "no tensors to write"),
        ("none/a.pt", small(), "there is no folder"),
        ("a.safetensors", {"__metadata__": torch.ones(1)}, "'__metadata__'"),
        ("a.safetensors", {"a": torch.ones(1, dtype=torch.complex128)}, "complex128"),
        ("a.safetensors", {"\ud800": torch.ones(1)}, "safetensors cannot hold this"),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(tmp_path, name, tensors, said) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path / name))}: .*{re.escape(said)}"):
        write_checkpoint(tmp_path / name, tensors)
    assert not list(tmp_path.iterdir())


@SUFFIXES
@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.ones(2, device="meta")], ids=[0, 1])
def test_only_dense_tensors_with_values_are_written_and_read(tmp_path, suffix, tensor) -> None:
    with pytest.raises(CheckpointError, match="'a' is no dense tensor"):
        write_checkpoint(tmp_path / f"a{suffix}", {"a": tensor})
    torch.save({"a": tensor}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "'a' is no dense tensor")


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_found_beside_other_things(tmp_path, key, zipped) -> None:
    whole = {"epoch": 3, key: small(), "optimizer": {"state": {0: torch.ones(2)}, "lr": 0.1}, "best": None}
    torch.save(whole, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert plain(read_checkpoint(tmp_path / "a.pt")) == plain(small())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])
def test_a_prefix_of_all_names_is_taken_off(tmp_path, prefix) -> None:
    wrapped = {f"{prefix}{name}": tensor for name, tensor in small().items()}
    torch.save({"state_dict": wrapped}, tmp_path / "a.pt")
    assert plain(read_checkpoint(tmp_path / "a.pt")) == plain(small())
    torch.save(wrapped | {"other": torch.ones(1)}, tmp_path / "b.pt")
    assert set(read_checkpoint(tmp_path / "b.pt")) == {*wrapped, "other"}
    assert list(read_checkpoint(written(tmp_path / "c.pt", {"module.": torch.ones(1)}))) == ["module."]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"epoch": 3, "loss": 0.5}, "no named tensor: 'epoch', 'loss'; save it with torch.save(model.state_dict("),
        *((small() | {"epoch": 3}, "no named tensor: 'epoch';"), ({0: torch.ones(1)}, "no named tensor: 0;")),
        *(({}, "no named tensor: an empty dict;"), ({"model": {}}, "no named tensor: 'model';")),
        ({"model": small(), "state_dict": small()}, "several state dicts: 'state_dict', 'model';"),
        (dict.fromkeys("abcde", 1), "'a', 'b', 'c' and 2 more, 5 in all;"),
        *(([torch.ones(1)], "holds a list, not named tensors;"), (torch.ones(1), "holds a Tensor, not named")),
    ],
)
def test_a_file_without_one_state_dict_is_refused(tmp_path, value, said) -> None:
    torch.save(value, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", said)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: {"state_dict": small(), "extra": evil}])
def test_code_in_a_file_is_named_and_not_run(tmp_path, zipped, wrap) -> None:
    evil = wrap(Evil(tmp_path / "pwned"))
    torch.save(evil, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    refused(tmp_path / "a.pt", f"holds code, {os.mkdir.__module__}.mkdir, which weights_only refuses; save it")
    assert not (tmp_path / "pwned").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "pwned").exists(), "the file was harmless, so the test said nothing"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("suffix", WRITABLE)
def test_a_plain_pickle_is_not_run_either(tmp_path, protocol, suffix) -> None:
    (tmp_path / f"a{suffix}").write_bytes(pickle.dumps(Evil(tmp_path / "pwned"), protocol))
    refused(tmp_path / f"a{suffix}", "torch.save(model.state_dict()")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_or_torchscript_archive_is_refused(tmp_path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "torch.nn.modules.linear.Linear", "weights_only refuses", "model.state_dict()")
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "b.pt")
    refused(tmp_path / "b.pt", "TorchScript", "weights_only refuses", "model.state_dict()")


@SUFFIXES
@given(data=st.data())
@settings(max_examples=30)
def test_a_truncated_file_is_refused(tmp_path_factory, suffix, data) -> None:
    place = written(tmp_path_factory.mktemp("files") / f"a{suffix}")
    content = place.read_bytes()
    place.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
    refused(place, "is truncated, corrupt or no checkpoint", "copy it again")


@given(data=st.data())
def test_a_flipped_bit_of_a_torch_file_changes_no_tensor(tmp_path_factory, data) -> None:
    place = written(tmp_path_factory.mktemp("files") / "a.pt")
    content = bytearray(place.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    place.write_bytes(content)
    with suppress(CheckpointError):
        assert plain(read_checkpoint(place)) == plain(small())


def test_a_file_saved_without_checksums_is_read(tmp_path) -> None:
    with config.patch("save.compute_crc32", False):
        place = written(tmp_path / "a.pt")
    assert plain(read_checkpoint(place)) == plain(small())


@SUFFIXES
@given(content=st.binary(min_size=1) | st.text(min_size=1).map(lambda text: text.encode("utf-8", "replace")))
@settings(max_examples=25)
def test_any_other_file_is_refused_in_one_line(tmp_path_factory, suffix, content) -> None:
    place = tmp_path_factory.mktemp("files") / f"a{suffix}"
    place.write_bytes(content)
    refused(place)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_an_empty_file_is_refused(tmp_path, suffix) -> None:
    """Also a safetensors file without tensors."""
    for content, said in ((b"", "is empty"), ((2).to_bytes(8, "little") + b"{}", "")):
        (tmp_path / f"a{suffix}").write_bytes(content)
        refused(tmp_path / f"a{suffix}", said)


def test_a_missing_file_names_near_ones(tmp_path) -> None:
    for name in ("model-1.pt", "model-2.pt", "other.txt"):
        (tmp_path / name).touch()
    refused(tmp_path / "model-3.pt", "no such file; did you mean model-2.pt or model-1.pt?")
    refused(tmp_path / "zzz", "no such file; give a file, or a stored round as RUN@12")
    refused(tmp_path / "none" / "model.pt", f"there is no folder {tmp_path / 'none'} either")
    refused(tmp_path / "model-1.pt" / "a.pt", "cannot be read")


def test_a_folder_is_refused_and_a_run_tells_how_to_name_its_round(tmp_path, tiny) -> None:
    refused(tmp_path, "is a folder without tensors; name a file")
    path = tiny.create("first").path
    refused(path, f"is a run; {path}@-1 is its last round")
    refused("first", "no such file", "first@-1 is the last round", root=tiny.folder)


def test_a_stored_round_has_every_tensor_under_all_of_its_names(tiny) -> None:
    path = tiny.train(tiny.create("first"), 2).path
    layout = tiny.schema.layout
    for place, number in (("first@0", 0), ("first@1", 1), ("first@-1", 2), (f"{path}@2", 2), ("first@-3", 0)):
        named = tiny.state(number).named(layout)
        wanted = {p.partition("/")[2]: t for p, t in named.items() if not p.startswith("memory/")}
        found = read_checkpoint(place, tiny.folder)
        assert plain(found) == plain(wanted | {"head.weight": wanted["fc.weight"]})
        check_checkpoint(place, found, found)


def test_a_round_or_run_that_is_not_there_is_refused_as_everywhere(tiny, flip) -> None:
    store = tiny.train(tiny.create("first"), 1)
    refused("first@7", "no committed round 7", "it has rounds 0 to 1", error=RoundMissing, root=tiny.folder)
    refused("first@-7", "it has rounds 0 to 1", error=RoundMissing, root=tiny.folder)
    refused("fist@1", "no run 'fist'", "did you mean first?", error=NotARun, root=tiny.folder)
    refused("first@final", "no such file", "RUN@12", root=tiny.folder)
    flip(next(path for path in (store.path / "params/fc.weight/c/1").rglob("*") if path.is_file()))
    refused("first@1", "stored bytes", error=StoreDamaged, root=tiny.folder)


def test_a_file_comes_before_a_run_of_the_same_name(tiny, tmp_path, monkeypatch) -> None:
    tiny.create("first")
    monkeypatch.chdir(tmp_path)
    torch.save(small(), "first@0")
    assert plain(read_checkpoint("first@0", tiny.folder)) == plain(small())


def told(tensors: Tensors, expected: Tensors) -> str:
    with pytest.raises(CheckpointError, match=r"^here\.pt") as caught:
        check_checkpoint("here.pt", tensors, expected)
    return str(caught.value)


def test_tensors_that_fit_pass_and_integer_scalars_may_be_absent() -> None:
    check_checkpoint("here.pt", small(), small())
    check_checkpoint("here.pt", {n: t for n, t in small().items() if t.ndim}, small())
    meta = {name: tensor.to("meta", torch.float64 if tensor.ndim else None) for name, tensor in small().items()}
    check_checkpoint("here.pt", small(), meta)
    whole = {"a": torch.ones(2)}
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        check_checkpoint("here.pt", {"a": torch.ones(2, dtype=dtype)}, whole)
    check_checkpoint("here.pt", whole, {"a": torch.ones(2).to(torch.float8_e5m2)})


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_file_may_leave_out_all_but_one_of_tied_tensors(tmp_path, left_out: int) -> None:
    apart, network = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    network[1].weight = network[0].weight
    kept = {name: t for name, t in network.state_dict().items() if name != f"{left_out}.weight"}
    save_file(kept, tmp_path / "tied.safetensors")
    opened, expected = open_checkpoint(tmp_path / "tied.safetensors"), outline(network)
    check_checkpoint("tied", opened, expected)
    assert plain(fitted(opened, expected)) == plain(network.state_dict())
    with pytest.raises(CheckpointError, match=f"lacks '{left_out}.weight'"):
        check_checkpoint("tied", opened, outline(apart))


def test_missing_and_extra_names_are_told_and_the_nearest_for_a_misnamed_one() -> None:
    renamed = {name.replace("fc.w", "fc1.w"): tensor for name, tensor in small().items()}
    said = "here.pt lacks 'fc.weight' and has 'fc1.weight' too much; perhaps 'fc1.weight' is 'fc.weight'"
    assert told(renamed, small()) == said
    assert told({}, small()) == "here.pt lacks 'fc.weight', 'fc.bias'; is it of this network?"
    many = small() | {f"other{n}": torch.ones(1) for n in range(5)}
    assert "has 'other0', 'other1', 'other2' and 2 more, 5 in all too much" in told(many, small())
    assert "lacks 'other0', 'other1', 'other2' and 2 more, 5 in all;" in told(small(), many)
    miscounted = {name.replace("seen", "seem"): tensor for name, tensor in small().items()}
    assert "has 'seem' too much; perhaps 'seem' is 'seen'" in told(miscounted, small())


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.ones(4), "is float of shape (4,), but float of shape (3,) in the network"),
        (torch.ones(3, 1), "is float of shape (3, 1), but float of shape (3,)"),
        (torch.ones(3, dtype=torch.int64), "is integer of shape (3,), but float of shape (3,)"),
        *((torch.ones(3).bool(), "is bool of shape"), (torch.ones(3).cfloat(), "is complex of shape")),
        (torch.tensor([1.0, float("nan"), float("-inf")]), "has 2 of 3 elements that are not finite"),
    ],
)
def test_another_shape_kind_or_value_is_told(tensor, said) -> None:
    assert f"'fc.bias' {said}" in told(small() | {"fc.bias": tensor}, small())


def test_numbers_that_the_networks_dtype_cannot_hold_are_not_finite() -> None:
    text = told({"a": torch.tensor([1.0, 1e6])}, {"a": torch.ones(2, dtype=torch.float16)})
    assert text == "here.pt: 'a' has 1 of 2 elements that are not finite as float16; take an earlier checkpoint"


@given(tensors=st.dictionaries(NAMES, drawn(), max_size=4), expected=st.dictionaries(NAMES, drawn(), max_size=4))
@settings(max_examples=50)
def test_what_passes_the_check_has_the_shapes_of_the_network_and_is_finite(tensors, expected) -> None:
    for pair in ((tensors, expected), (tensors, tensors)):
        try:
            check_checkpoint("here.pt", *pair)
        except CheckpointError as error:
            assert str(error).startswith("here.pt")
        else:
            assert all(tensor.shape == pair[1][name].shape for name, tensor in pair[0].items())
            assert all(t.to(torch.complex128).isfinite().all() for t in pair[0].values())


@pytest.mark.parametrize("use", [read_checkpoint, check_place, written])
def test_a_checkpoint_elsewhere_than_on_a_disk_is_refused(tmp_path, monkeypatch, use) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("s3://bucket/a.pt", Path("s3://bucket/a.safetensors")):
        with pytest.raises(UsageError, match="is not on a disk of this machine; give a path"):
            use(place)
    assert list(tmp_path.iterdir()) == []


# A checkpoint in shards, whose index leads nowhere else.


def index(folder: Path, suffix: str = ".safetensors", **changes: object) -> Path:
    """Two shards and their index, whose map of tensors to shards may be changed."""
    places = {n: f"model-0000{1 if n == 'fc.weight' else 2}-of-00002{suffix}" for n in small()}
    for place in set(places.values()):
        write_checkpoint(folder / place, {n: t for n, t in small().items() if places[n] == place})
    path = folder / f"model{suffix}.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 44}, "weight_map": places | changes}))
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_read_as_one(tmp_path, suffix) -> None:
    path = index(tmp_path, suffix)
    for place in [path] + [path.parent] * (suffix == ".safetensors"):
        assert plain(read_checkpoint(place)) == plain(small())


ELSEWHERE = ["../model-00001-of-00002.safetensors", "/etc/passwd", "sub/a.pt", "..", "", "a\0.pt", "notes.txt"]


@pytest.mark.parametrize("shard", ELSEWHERE)
def test_an_index_leads_nowhere_else(tmp_path, shard) -> None:
    (tmp_path / "notes.txt").touch()
    refused(index(tmp_path, **{"fc.weight": shard}), "no checkpoint beside it")
    (folder := tmp_path / "folder").mkdir()
    path, linked = index(folder), folder / "model-00001-of-00002.safetensors"
    linked.symlink_to(linked.rename(tmp_path / "elsewhere.safetensors"))
    with pytest.raises(CheckpointError, match="is a link that leads out of the folder"):
        read_checkpoint(path)


def test_a_snapshot_in_the_cache_of_hugging_face_leads_to_its_own_blobs_alone(tmp_path) -> None:
    """As huggingface_hub lays it out: each file is a link to a blob that has its digest as name."""
    (snapshot := tmp_path / "models--a--b/snapshots/c0ffee").mkdir(parents=True)
    (blobs := tmp_path / "models--a--b/blobs").mkdir()
    for number, path in enumerate(sorted(index(snapshot).parent.iterdir())):
        path.rename(blobs / f"{number}")
        path.symlink_to(f"../../blobs/{number}")
    for place in (snapshot, snapshot / "model.safetensors.index.json"):
        assert plain(read_checkpoint(place)) == plain(small())
    (blobs / "0").rename(tmp_path / "0")
    (blobs / "0").symlink_to(tmp_path / "0")
    refused(snapshot, "is a link that leads out of the folder")
    (tmp_path / "0").rename(blobs / "0")
    blobs.rename(tmp_path / "others")
    blobs.symlink_to(tmp_path / "others")
    refused(snapshot, "is a link that leads out of the folder")


def test_what_is_missing_is_named(tmp_path) -> None:
    refused(index(tmp_path, more="gone.pt"), "names the shard gone.pt, which is not beside it; copy all shards")
    refused(index(tmp_path, more="model-00001-of-00002.safetensors"), "do not agree on 'more'; copy both again")


MAPS = ['{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}']


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", "7", *MAPS, "[" * 10**6], ids=len)
def test_what_is_no_index_is_one_line(tmp_path, content) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    refused(path)
