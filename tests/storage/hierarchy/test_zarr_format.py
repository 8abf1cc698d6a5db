"""Chunks written here are those that zarr writes, and zarr reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.metadata import ArrayV3Metadata

from roundweave.storage.errors import ShapeMismatch, StoreDamaged
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.hierarchy.zarr_format import read_chunk, read_parts, stream_chunk, write_chunk
from roundweave.storage.places.local import LocalPlace

STORED = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"]


def created(root: Path, spec: ArraySpec) -> zarr.Array:
    """The array as zarr makes it from the metadata."""
    nodes = {"": zarr.core.group.GroupMetadata(), spec.path: ArrayV3Metadata.from_dict(spec.metadata())}
    for _ in zarr.create_hierarchy(store=zarr.storage.LocalStore(root), nodes=nodes):
        pass
    with zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(root / spec.path, mode="r+")


def spec_of(dtype: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> ArraySpec:
    return ArraySpec("group/a", dtype, shape, chunks, tuple(f"axis{n}" for n in range(len(shape))))


def drawn(spec: ArraySpec) -> np.ndarray:
    """A chunk of an array with as many axes as the chunk."""
    return (np.random.default_rng(0).standard_normal(spec.chunks) * 9).astype(spec.stored)


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and path.name != "zarr.json")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


ELEMENTS = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(st.sampled_from(STORED), ELEMENTS, st.integers(1, 4), st.booleans())
@settings(max_examples=30)
def test_the_bytes_are_those_that_zarr_writes(tmp_path_factory, dtype, element, rows, zeros) -> None:
    spec = spec_of(dtype, (rows, *element), (1, *element))
    by_zarr, by_hand = tmp_path_factory.mktemp("zarr"), tmp_path_factory.mktemp("hand")
    chunk = np.zeros(spec.chunks, spec.stored) if zeros else drawn(spec)
    created(by_zarr, spec)[rows - 1 : rows] = chunk
    array, place = created(by_hand, spec), LocalPlace(by_hand)
    for row in (chunk, chunk[0]):  # which may come without the axes of its index
        write_chunk(place, spec, (rows - 1,), row)
        assert files(by_hand) == files(by_zarr)
    assert np.array_equal(array[rows - 1 : rows], chunk)
    assert np.array_equal(read_chunk(place, spec, (rows - 1,)), chunk)
    assert rows == 1 or read_chunk(place, spec, (0,)) is None


@given(bit=st.integers(0, 8 * (24 + 4) - 1))
@settings(max_examples=50)
def test_any_flipped_bit_is_refused_here_and_by_zarr(tmp_path_factory, bit) -> None:
    root = tmp_path_factory.mktemp("flipped")
    spec = spec_of("float32", (1, 6), (1, 6))
    array = created(root, spec)
    write_chunk(LocalPlace(root), spec, (0,), drawn(spec))
    path = root / "group/a/c/0/0"
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="group/a/c/0/0: the stored bytes are not those"):
        read_chunk(LocalPlace(root), spec, (0,))
    with pytest.raises(ValueError, match=r"(?i)checksum"):
        array[:]


OTHERS = [((1, 5), "<f4"), ((3, 2), "<f4"), (6, "<f4"), ((), "<f4")]
OTHERS += [((1, 2, 3), dtype) for dtype in ("<f8", ">f4", "<i4")]


@pytest.mark.parametrize(("shape", "dtype"), OTHERS)
def test_an_array_that_is_not_the_chunk_is_refused_and_nothing_is_written(tmp_path, shape, dtype) -> None:
    spec = spec_of("float32", (2, 2, 3), (1, 2, 3))
    with pytest.raises(ShapeMismatch, match=r"group/a: a chunk is \(1, 2, 3\) float32"):
        write_chunk(LocalPlace(tmp_path), spec, (1,), np.zeros(shape, dtype))
    assert not files(tmp_path)


@pytest.mark.parametrize("index", [(2,), (-1,), (0, 1), (0, 0, 1)])
def test_a_chunk_outside_the_array_is_refused(tmp_path, index) -> None:
    spec = spec_of("float32", (2, 2, 3), (1, 2, 3))
    with pytest.raises(ShapeMismatch, match="lies outside"):
        write_chunk(LocalPlace(tmp_path), spec, index, np.zeros((1, 2, 3), np.float32))
    with pytest.raises(ShapeMismatch, match="lies outside"):
        read_chunk(LocalPlace(tmp_path), spec, index)


def test_an_array_that_is_not_contiguous_is_written_in_c_order(tmp_path) -> None:
    spec = spec_of("float32", (1, 2, 3), (1, 2, 3))
    chunk = np.arange(6, dtype=np.float32).reshape(1, 3, 2).transpose(0, 2, 1)
    write_chunk(LocalPlace(tmp_path), spec, (0,), chunk)
    assert np.array_equal(created(tmp_path, spec)[:], chunk)


@given(dtype=st.sampled_from(STORED), rows=st.integers(1, 9), columns=st.integers(1, 3), step=st.integers(1, 12))
def test_a_chunk_in_parts_is_the_chunk(tmp_path_factory, dtype, rows, columns, step) -> None:
    place, spec = LocalPlace(tmp_path_factory.mktemp("p")), spec_of(dtype, (2, rows, columns), (1, rows, columns))
    chunk = drawn(spec)
    write_chunk(place, spec, (0,), chunk)
    stream_chunk(place, spec, (1,), (part for part in np.array_split(chunk.reshape(-1), step)))
    assert place.read(f"{spec.path}/c/0/0/0") == place.read(f"{spec.path}/c/1/0/0")
    parts = list(read_parts(place, spec, (1,), step))
    assert [len(part) for part in parts[:-1]] == [step] * (len(parts) - 1)
    assert np.concatenate(parts).tobytes() == chunk.tobytes()


@pytest.mark.parametrize("elements", [5, 7])
def test_parts_that_make_no_whole_chunk_are_refused(tmp_path, elements) -> None:
    place, spec = LocalPlace(tmp_path), spec_of("float32", (1, 6), (1, 6))
    with pytest.raises(ShapeMismatch, match="group/a: a chunk has 24 bytes, not"):
        stream_chunk(place, spec, (0,), [np.zeros(elements, "float32")])
    assert place.names() in ([], ["group"])
    assert place.read(f"{spec.path}/c/0/0") is None


def test_a_damaged_chunk_is_refused_whole_and_in_parts(tmp_path) -> None:
    place, spec = LocalPlace(tmp_path), spec_of("float32", (1, 6), (1, 6))
    write_chunk(place, spec, (0,), np.zeros((1, 6), "float32"))
    key = f"{spec.path}/c/0/0"
    whole = bytes(place.read(key))
    for content in (whole + b"x", b"\1" + whole[1:], *(whole[:size] for size in (0, 3, 4, 7, len(whole) - 1))):
        place.write(key, content)
        for read in (lambda: read_chunk(place, spec, (0,)), lambda: list(read_parts(place, spec, (0,), 2))):
            with pytest.raises(StoreDamaged, match=r"are not those that were written|at most 28 belong"):
                read()
