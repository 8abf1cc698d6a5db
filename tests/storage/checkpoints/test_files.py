"""A file is read tensor by tensor, and only while it is the file that was opened."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from roundweave.storage.checkpoints import files
from roundweave.storage.checkpoints.files import SUFFIXES, open_file
from roundweave.storage.checkpoints.writing import DTYPES, write_checkpoint
from roundweave.storage.errors import CheckpointError
from roundweave.storage.values.lazy import BLOCK, LazyTensors
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
    write_checkpoint(tmp_path / "a.safetensors", TENSORS, {"merge": "of two"})
    with safe_open(tmp_path / "a.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "merge": "of two"}
    write_checkpoint(tmp_path / "b.safetensors", TENSORS)
    with safe_open(tmp_path / "b.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}, "transformers takes no file without it"
    for suffix in SUFFIXES:
        write_checkpoint(tmp_path / f"c{suffix}", TENSORS, {"merge": "of two"})
        assert sorted(open_file(tmp_path / f"c{suffix}")) == ["a", "b"]


def test_a_safetensors_file_has_the_bytes_that_the_library_writes(tmp_path) -> None:
    eight = torch.arange(3)
    tensors = {"b": torch.ones(2, 3), "a": torch.randn(3, 4).T, 'é"\\\x01': eight, "on": eight > 1}
    tensors |= {
        "tied": tensors["b"],
        "view": eight[1:],
        "scalar": torch.tensor(2.5),
        "none": torch.ones(0, 5).half(),
    }
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


@pytest.mark.parametrize(("most", "times"), [(1 << 26, 1), (16, 3)])
def test_a_torch_file_is_opened_once_until_much_of_it_was_read(tmp_path, monkeypatch, most, times) -> None:
    """A row has 12 bytes: with 16 at most, the file of four rows is opened again after each second one."""
    write_checkpoint(tmp_path / "a.pt", {f"row{i}": torch.full((3,), float(i)) for i in range(4)})
    opened, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **named: opened.append(1) or load(*args, **named))
    monkeypatch.setattr(files, "MOST_MAPPED", most)
    rows = open_file(tmp_path / "a.pt")
    assert [rows[name].tolist() for name in (*rows, "row0")] == [[i] * 3 for i in (0, 1, 2, 3, 0)]
    assert len(opened) == times


def test_a_file_is_synced_before_it_takes_the_place_of_another_and_so_is_its_name_then(
    file, tmp_path, monkeypatch
) -> None:
    synced = []

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.stat().st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    before = file.stat().st_ino
    write_checkpoint(file, {name: 2 * tensor for name, tensor in TENSORS.items()})
    new = file.stat()
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


def test_a_file_may_be_read_by_all_who_may_read_its_neighbours(file, tmp_path) -> None:
    (tmp_path / "other").touch()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode
