"""A file is read tensor by tensor, and only while it is the file that was opened."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from roundweave.storage.checkpoints.files import SUFFIXES, open_file
from roundweave.storage.checkpoints.writing import DTYPES, write_checkpoint
from roundweave.storage.errors import CheckpointError
from roundweave.storage.values.lazy import BLOCK, LazyTensors, blocks_of, changed, computed, picked
from roundweave.storage.values.tensors import same_bits, specs_of

TENSORS = {"module.a": torch.arange(4.0).reshape(2, 2), "module.b": torch.ones(3, dtype=torch.int64)}


@pytest.fixture(params=[".safetensors", ".pt"])
def file(request, tmp_path) -> Path:
    write_checkpoint(tmp_path / f"a{request.param}", TENSORS)
    return tmp_path / f"a{request.param}"


def test_a_file_says_what_was_written(file) -> None:
    opened = open_file(file)
    assert sorted(opened) == ["a", "b"]
    assert all(torch.equal(opened[name], TENSORS[f"module.{name}"]) for name in opened)
    assert "module.a" not in opened
    with pytest.raises(KeyError):
        opened["c"]


def test_a_safetensors_file_tells_what_it_is_of(tmp_path) -> None:
    for told in ({"merge": "of two"}, {}):
        write_checkpoint(tmp_path / "a.safetensors", TENSORS, told)
        with safe_open(tmp_path / "a.safetensors", "pt") as opened:
            assert opened.metadata() == told | {"format": "pt"}, "transformers takes no file without it"
    for suffix in SUFFIXES:
        write_checkpoint(tmp_path / f"c{suffix}", TENSORS, {"merge": "of two"})
        assert sorted(open_file(tmp_path / f"c{suffix}")) == ["a", "b"]


def test_a_safetensors_file_has_the_bytes_that_the_library_writes(tmp_path) -> None:
    eight = torch.arange(3)
    tensors = {"b": torch.ones(2, 3), "a": torch.randn(3, 4).T, 'é"\\\x01': eight, "on": eight > 1}
    tensors |= {"tied": tensors["b"], "view": eight[1:], "scalar": torch.tensor(2.5)}
    tensors |= {"none": torch.ones(0, 5).half()}
    plain = {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    save_file(plain, tmp_path / "a", {"format": "pt"})
    read = []
    lazy = LazyTensors(tuple(tensors), lambda name: read.append(name) or tensors[name], specs_of(tensors.items()))
    for each in (tensors, lazy):
        write_checkpoint(tmp_path / "b.safetensors", each)
        assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(read) == sorted(tensors)  # each once


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])
def test_the_library_reads_each_dtype(tmp_path, dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    write_checkpoint(tmp_path / "a.safetensors", {"a": tensor})
    found = load_file(tmp_path / "a.safetensors")["a"]
    assert found.dtype == dtype and same_bits(found, tensor)


def test_a_tensor_is_read_each_time_and_is_the_callers(file) -> None:
    opened = open_file(file)
    opened["a"].zero_()
    assert torch.equal(opened["a"], TENSORS["module.a"])
    assert opened["a"].data_ptr() != open_file(file)["a"].data_ptr()


def test_a_file_that_changed_since_is_not_mixed_with_what_it_was(file) -> None:
    opened = open_file(file)
    write_checkpoint(file, {name: 2 * tensor for name, tensor in TENSORS.items()})
    os.utime(file, ns=(1, 1))
    with pytest.raises(CheckpointError, match="has changed while it was read; do it again"):
        opened["a"]


def test_a_file_is_synced_before_it_replaces_another_and_its_name_after(file, tmp_path, monkeypatch) -> None:
    synced = []

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.stat().st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    before = file.stat().st_ino
    write_checkpoint(file, {name: 2 * tensor for name, tensor in TENSORS.items()})
    new = file.stat()
    (tmp_path / "other").touch()
    assert new.st_mode == (tmp_path / "other").stat().st_mode  # whoever reads its neighbours may read it
    (content, named, size), (folder, renamed, _) = synced
    assert (content, named, size) == (new.st_ino, before, new.st_size)
    assert (folder, renamed) == (tmp_path.stat().st_ino, new.st_ino)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_file_that_becomes_too_large_for_the_system_leaves_the_one_before(tmp_path, blocks) -> None:
    place = tmp_path / "a.safetensors"
    write_checkpoint(place, TENSORS)
    before, limits = place.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK - 1, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"a\.safetensors cannot be written: OSError: .*File too large"):
            write_checkpoint(place, {"a": torch.ones(blocks * BLOCK)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert place.read_bytes() == before and [*tmp_path.iterdir()] == [place]


# Blocks of tensors, joined, are the tensors, wherever they come from.

SHAPES = {"scalar": (), "none": (0, 5), "few": (2, 3), "less": (BLOCK - 1,), "one": (BLOCK,)}
LARGE = {name: torch.randn(shape) for name, shape in (SHAPES | {"more": (3, BLOCK - 7)}).items()}


def joined(tensors, name: str) -> torch.Tensor:
    """A tensor's elements (elements,) from its blocks, each copied before the next one is asked for."""
    return torch.cat([block.clone() for block in blocks_of(tensors, name)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_the_blocks_of_a_file_are_its_tensors(tmp_path, suffix, dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in LARGE.items()}
    write_checkpoint(tmp_path / f"a{suffix}", tensors)
    opened = open_file(tmp_path / f"a{suffix}")
    for name, tensor in tensors.items():
        assert [len(block) for block in blocks_of(opened, name)] == [len(b) for b in blocks_of(tensors, name)]
        assert same_bits(joined(opened, name), tensor.reshape(-1)) and same_bits(opened[name], tensor)


@given(st.lists(st.integers(0, 2 * BLOCK + 1), min_size=1, max_size=3))
@settings(max_examples=15)
def test_names_and_elements_are_changed_whole_and_by_block_alike(sizes) -> None:
    tensors = {f"t{i}": torch.arange(float(size)) for i, size in enumerate(sizes)}
    renamed = picked({f"new {name}": (tensors, name) for name in tensors} | {"again": (tensors, "t0")})
    halves = changed(renamed, renamed.specs, lambda _, tensor: tensor / 2)
    lazy = computed(halves.specs, lambda name: blocks_of(halves, name))
    assert list(lazy) == [*(f"new {name}" for name in tensors), "again"]
    for name in lazy:
        wanted = tensors["t0" if name == "again" else name.removeprefix("new ")] / 2
        for given_tensors in (halves, lazy):
            assert same_bits(given_tensors[name], wanted) and same_bits(joined(given_tensors, name), wanted)


def test_a_file_is_written_from_blocks_alone(tmp_path) -> None:
    def read(name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read whole")

    lazy = LazyTensors(tuple(LARGE), read, specs_of(LARGE.items()), lambda name: blocks_of(LARGE, name))
    write_checkpoint(tmp_path / "a.safetensors", lazy)
    write_checkpoint(tmp_path / "b.safetensors", LARGE)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_file_that_ends_between_two_blocks_is_refused(tmp_path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"more": LARGE["more"]})
    blocks = blocks_of(open_file(tmp_path / "a.safetensors"), "more")
    next(blocks)
    with (tmp_path / "a.safetensors").open("rb+") as file:
        file.truncate(BLOCK * 5)
    with pytest.raises(CheckpointError, match="the file ends within more"):
        list(blocks)


HALF = """
import sys, time
from pathlib import Path
from roundweave.storage.checkpoints import folders, writing
wait = lambda folder: (print(flush=True), time.sleep(100))
if sys.argv[1] == "folder":
    with folders.new_folder(Path(sys.argv[2])) as new:
        wait(new)
writing._write(Path(sys.argv[2]), wait)
"""


@pytest.mark.dear("real processes, of which one is killed")
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_writer_left_is_removed_and_what_another_writes_is_not(tmp_path, kind) -> None:
    left = []
    for _ in "dead", "live":
        command = [sys.executable, "-c", HALF, kind, str(tmp_path / "out.safetensors")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout and writer.stdout.readline()
            write_checkpoint(tmp_path / "another.safetensors", TENSORS)
            left.append({*tmp_path.glob(".*")})
            writer.kill()
    write_checkpoint(tmp_path / "another.safetensors", TENSORS)
    assert all(left) and not left[0] & left[1] and not [*tmp_path.glob(".*")]
