"""Files that neighbouring partitions share are those of zarr's sharding codec; zarr and xarray read them."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import ShapeMismatch, StoreDamaged
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.hierarchy.zarr_format import is_cut, keep_chunks, partitions_in, read_stored, write_shard
from roundweave.storage.places.local import LocalPlace
from tests.storage.conftest import thorough
from tests.storage.hierarchy.test_zarr_format import STORED, created, files


def spec_of(partitions: int, shard: int, dtype: str = "float32", element: tuple[int, ...] = (3,)) -> ArraySpec:
    dims = ("round", "partition", *(f"a.{axis}" for axis in range(len(element))))
    return ArraySpec("a", dtype, (3, partitions, *element), (1, 1, *element), dims, shard)


def drawn(spec: ArraySpec, partitions: list[int], seed: int = 0) -> dict[int, np.ndarray]:
    """A chunk for each partition, without leading axes."""
    generator = np.random.default_rng(seed)
    return {p: (generator.standard_normal(spec.chunks[2:]) * 9).astype(spec.stored) for p in partitions}


def write(place: LocalPlace, spec: ArraySpec, arrays: dict[int, np.ndarray], round: int = 1) -> None:
    for number in {partition // spec.shard for partition in arrays}:
        write_shard(place, spec, round, {p: a for p, a in arrays.items() if p // spec.shard == number})


ELEMENTS = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)


@given(st.data(), st.integers(1, 12), st.integers(2, 13), st.sampled_from(STORED), ELEMENTS)
@settings(max_examples=30)
def test_the_bytes_are_those_that_zarr_writes(tmp_path_factory, data, partitions, shard, dtype, element) -> None:
    """We read them, too."""
    spec = spec_of(partitions, shard, dtype, element)
    by_zarr, by_hand = map(tmp_path_factory.mktemp, ("zarr", "hand"))
    arrays = drawn(spec, sorted(data.draw(st.sets(st.integers(0, partitions - 1)))))
    array = created(by_zarr, spec)
    for partition, chunk in arrays.items():
        array[1:2, partition : partition + 1] = chunk[None, None]
    write(LocalPlace(by_hand), spec, arrays)
    assert files(by_hand) == files(by_zarr)
    assert len(files(by_hand)) == len({partition // shard for partition in arrays})
    for partition in range(partitions):
        stored = read_stored(LocalPlace(by_hand), spec, (1, partition))
        assert (stored is not None) == (partition in arrays)
        assert stored is None or stored[0, 0].tobytes() == arrays[partition].tobytes()


def test_a_file_by_hand(tmp_path) -> None:
    """Partitions 3 and 5 of the shard 3, 4, 5 (and none of 4): an index of 52 bytes, and two chunks of 8."""
    spec = spec_of(7, 3, "uint8", (4,))
    write(LocalPlace(tmp_path), spec, {5: np.array([5, 6, 7, 8], np.uint8), 3: np.array([1, 2, 3, 4], np.uint8)})

    def summed(content: bytes) -> bytes:
        return content + google_crc32c.value(content).to_bytes(4, "little")

    absent = 2**64 - 1
    index = b"".join(number.to_bytes(8, "little") for number in (52, 8, absent, absent, 60, 8))
    assert files(tmp_path) == {"a/c/1/1/0": summed(index) + summed(b"\1\2\3\4") + summed(b"\5\6\7\x08")}
    assert partitions_in(LocalPlace(tmp_path), spec, (1, 4)) == [3, 5]
    assert partitions_in(LocalPlace(tmp_path), spec, (2, 4)) == []


def damage(root: Path, spec: ArraySpec, content: bytes, partitions: list[int]) -> bool:
    """Whether reading all of these partitions finds that the file has this content."""
    (root / "a/c/1/0/0").write_bytes(content)
    try:
        found = [read_stored(LocalPlace(root), spec, (1, partition)) for partition in partitions]
    except StoreDamaged as error:
        assert str(error).startswith(f"{root}/a/c/1/0/0: ")
        return True
    return any(chunk is None for chunk in found)


@pytest.mark.parametrize("present", [[0, 2], *thorough([0, 1, 2, 3], [1], [3])])
def test_every_flipped_bit_and_each_other_length_is_found(tmp_path, present) -> None:
    spec = spec_of(4, 4, "float32", (2,))
    write(LocalPlace(tmp_path), spec, drawn(spec, present))
    sound = (tmp_path / "a/c/1/0/0").read_bytes()
    assert not damage(tmp_path, spec, sound, present)
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        assert damage(tmp_path, spec, bytes(flipped), present), bit
    for length in range(len(sound)):
        assert damage(tmp_path, spec, sound[:length], present), length
        assert is_cut(spec, length) or (length - 68) % 12 == 0
    assert damage(tmp_path, spec, sound + b"\0", present)


FIRST, SECOND, THIRD = (68, 12), (80, 12), (92, 12)
INDICES = [(FIRST, FIRST, THIRD), (SECOND, FIRST, THIRD), (FIRST, SECOND, (1 << 63, 12))]
INDICES += [(FIRST, SECOND, (92, (1 << 64) - 2)), (FIRST, (81, 12), (93, 12)), (FIRST, (80, 11), THIRD)]


@pytest.mark.parametrize("index", INDICES)
def test_an_index_that_no_writer_makes_is_refused_though_its_checksum_fits(tmp_path, index) -> None:
    spec = spec_of(4, 4, "float32", (2,))
    write(LocalPlace(tmp_path), spec, drawn(spec, [0, 1, 2]))
    content = (tmp_path / "a/c/1/0/0").read_bytes()
    forged = np.array([*index, (2**64 - 1, 2**64 - 1)], "<u8").tobytes()
    summed = forged + google_crc32c.value(forged).to_bytes(4, "little")
    assert content[:68] != summed
    assert damage(tmp_path, spec, summed + content[68:], [0])


def test_chunks_are_let_go_by_writing_the_others_anew(tmp_path) -> None:
    spec, place = spec_of(4, 4), LocalPlace(tmp_path)
    arrays = drawn(spec, [0, 1, 3])
    write(place, spec, arrays)
    keep_chunks(place, spec, 1, [1, 2])
    alone = files(tmp_path)
    assert partitions_in(place, spec, (1, 0)) == [1]
    assert np.array_equal(read_stored(place, spec, (1, 1))[0, 0], arrays[1])
    keep_chunks(place, spec, 1, [1])
    keep_chunks(place, spec, 1, [2])  # what is not there cannot stay alone: nothing is done
    write(place, spec, {1: arrays[1]})
    assert files(tmp_path) == alone


def test_what_does_not_fit_is_refused(tmp_path) -> None:
    spec, place = spec_of(5, 2), LocalPlace(tmp_path)
    good = drawn(spec, [0])[0]
    for arrays in ({0: good[:2]}, {0: good.astype(np.float64)}, {5: good}, {-1: good}, {4: good, 5: good}):
        with pytest.raises(ShapeMismatch):
            write_shard(place, spec, 1, arrays)
    with pytest.raises(ShapeMismatch):
        write_shard(place, spec, 3, {0: good})
    with pytest.raises(ValueError, match="too many values"):
        write_shard(place, spec, 1, {1: good, 2: good})
    assert files(tmp_path) == {}
