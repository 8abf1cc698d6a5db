"""Blocks of tensors, joined, are the tensors, wherever they come from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.checkpoints.files import open_file
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError
from roundweave.storage.values.lazy import BLOCK, LazyTensors, blocks_of, changed, computed, picked
from roundweave.storage.values.tensors import same_bits, specs_of

SHAPES = {
    "scalar": (),
    "none": (0, 5),
    "few": (2, 3),
    "less": (BLOCK - 1,),
    "one": (BLOCK,),
    "more": (3, BLOCK - 7),
}
TENSORS = {name: torch.randn(shape) for name, shape in SHAPES.items()}


def joined(tensors, name: str) -> torch.Tensor:
    """A tensor's elements (elements,) from its blocks, each copied before the next one is asked for."""
    return torch.cat([block.clone() for block in blocks_of(tensors, name)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_the_blocks_of_a_file_are_its_tensors(tmp_path, suffix, dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in TENSORS.items()}
    write_checkpoint(tmp_path / f"a{suffix}", tensors)
    opened = open_file(tmp_path / f"a{suffix}")
    for name, tensor in tensors.items():
        assert [len(block) for block in blocks_of(opened, name)] == [len(b) for b in blocks_of(tensors, name)]
        assert same_bits(joined(opened, name), tensor.reshape(-1)) and same_bits(opened[name], tensor)


@given(st.lists(st.integers(0, 2 * BLOCK + 1), min_size=1, max_size=3))
@settings(max_examples=25)
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

    lazy = LazyTensors(tuple(TENSORS), read, specs_of(TENSORS.items()), lambda name: blocks_of(TENSORS, name))
    write_checkpoint(tmp_path / "a.safetensors", lazy)
    write_checkpoint(tmp_path / "b.safetensors", TENSORS)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_file_that_ends_between_two_blocks_is_refused(tmp_path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"more": TENSORS["more"]})
    blocks = blocks_of(open_file(tmp_path / "a.safetensors"), "more")
    next(blocks)
    with (tmp_path / "a.safetensors").open("rb+") as file:
        file.truncate(BLOCK * 5)
    with pytest.raises(CheckpointError, match="the file ends within more"):
        list(blocks)
