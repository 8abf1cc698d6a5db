"""Files larger than memory: their rows come back, and what is wrong with them is one line that names the file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr

import roundweave as rw
from roundweave.storage.errors import DataError, ExperimentDiffers, RoundFailed
from roundweave.tasks.data import stored_files
from roundweave.tasks.data.partitions import Partitions, forget_examples
from roundweave.tasks.data.sources.tabular import Tabular
from tests.rows import but_first
from tests.tasks.data.sources.written import npy, parquet_files, zarr_group, zarr_shards

INPUTS = np.random.default_rng(0).random((100, 6)).astype(np.float32)
TARGETS = (INPUTS.sum(1) > 3).astype(np.int32)


@pytest.fixture(autouse=True)
def _opened_anew() -> None:
    forget_examples()


OPTIONS = {"partitions": 2, "algorithm": "fed_avg", "batch_size": 8}


def opened(data: str) -> rw.Reader:
    return rw.find_source(data).load(0, 1).train


@pytest.mark.parametrize("name", [None, "day"])
def test_the_index_of_pandas_is_no_column(tmp_path: Path, name: str | None) -> None:
    """It would be the last column otherwise, and so the target."""
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 6.0, 7.0, 8.0], "c": [0, 0, 1, 0]})
    table[table.a != 2].rename_axis(name).to_parquet(tmp_path / "kept.parquet")
    for data in (f"parquet:{tmp_path}", f"parquet:{tmp_path}/kept.parquet"):
        train = opened(data).read(np.arange(3))
        assert (train.inputs.tolist(), train.targets.tolist()) == ([[1.0, 5.0], [3.0, 7.0], [4.0, 8.0]], [0, 1, 0])


def test_groups_are_what_is_stored_together(tmp_path: Path) -> None:
    kinds = (zarr_group, zarr_shards, parquet_files, npy)
    chunks, shards, row_groups, none = (opened(write(tmp_path, INPUTS, TARGETS)).groups for write in kinds)
    assert np.bincount(chunks).tolist() == np.bincount(shards).tolist() == [16] * 6 + [4]
    assert np.bincount(row_groups).tolist() == [16, 16, 8, 16, 16, 16, 12]
    assert none is None


@pytest.mark.parametrize(
    ("write", "split"),
    but_first(
        [(zarr_group, "iid")],  # read group by group
        [(npy, "contiguous"), (zarr_shards, "contiguous"), (parquet_files, "dirichlet:0.5")],
    ),
)
def test_a_run_on_files_has_the_same_bits_when_it_is_replayed(write, split: str, train, tmp_path: Path) -> None:
    run = train(data=write(tmp_path, INPUTS, TARGETS), split=split, local_steps=3, rounds=2, **OPTIONS)
    assert run.replay([1, 2]).identical


@pytest.mark.parametrize("write", but_first([npy], [npy, zarr_group, parquet_files]))
def test_a_number_that_is_none_refuses_its_partition_and_is_never_left_out_of_a_score(
    write, train, tmp_path: Path, monkeypatch
) -> None:
    inputs = INPUTS.copy()
    inputs[70, 2] = np.inf  # pandas would store NaN as a value that is missing
    options = OPTIONS | {"split": "contiguous", "rounds": 1, "data": write(tmp_path, inputs, TARGETS)}
    said = r"1 of \d+ examples have NaN or infinite inputs, the first is number 70; remove or fill them"
    run = train(**options, held_out=0)
    refused = [update.refused for _, update in sorted(run.round(1).commit.updates.items())]
    assert refused[0] is None
    assert re.search(said, refused[1])
    monkeypatch.setattr(
        "roundweave.tasks.data.partitions.hold_out", lambda *given: (np.arange(60), np.arange(60, 100))
    )
    with pytest.raises(RoundFailed, match=f"scoring failed with .*{said}"):
        train(**options)


def test_a_file_is_in_memory_and_a_folder_or_pattern_is_not(tmp_path: Path) -> None:
    names = np.array(["apple", "big"])[TARGETS]
    parquet_files(tmp_path, INPUTS, names)
    assert isinstance(rw.find_source(f"parquet:{tmp_path}/a.parquet"), Tabular)
    for text in (f"parquet:{tmp_path}", f"parquet:{tmp_path}/*.parquet"):
        assert opened(text).read(np.arange(100)).targets.tolist() == TARGETS.tolist()
        dataset = rw.find_source(text, target="a", by="label").load(0, 1)
        assert dataset.train.read(np.array([41])).inputs.tolist() == [INPUTS[41, 1:].tolist()]
        assert dataset.columns["label"].tolist() == names.tolist()
        assert dataset.train.targets.dtype == torch.float64


def test_lists_of_a_fixed_size_are_arrays(tmp_path: Path) -> None:
    pixels = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(range(12)), 3), 2)
    table = pa.table({"pixels": pixels, "age": [1.5, 2.5], "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    several = opened(f"parquet:{tmp_path}").read(np.array([1]))
    assert several.inputs["pixels"].tolist() == [[[6, 7, 8], [9, 10, 11]]]
    assert several.inputs["age"].tolist() == [2.5]
    pq.write_table(table.drop(["age"]), tmp_path / "a.parquet")
    assert opened(f"parquet:{tmp_path}").read(np.array([0])).inputs.shape == (1, 2, 3)


@pytest.mark.parametrize("write", [npy, zarr_group])
def test_targets_may_be_masks(write, tmp_path: Path) -> None:
    masks = np.zeros((100, 2, 2), np.uint8)
    masks[70, 1, 1] = 4
    partitions = Partitions(rw.find_source(write(tmp_path, INPUTS[:, :4].reshape(100, 2, 2), masks)), rw.Split(2))
    described = partitions.describe(0)
    assert (described.targets, described.labels, described.classes) == ((2, 2), True, 5)
    assert partitions.load(0, 0).first(1).targets.dtype == torch.int64


def test_targets_may_have_another_file(tmp_path: Path) -> None:
    np.save(tmp_path / "ages.npy", np.arange(100) / 2)
    source = rw.find_source(npy(tmp_path, INPUTS, TARGETS), target="ages.npy")
    assert source.load(0, 1).train.targets[3] == 1.5


@pytest.mark.dear("the client of a bucket is imported for it alone")
def test_a_bucket_holds_them_as_well(s3, tmp_path: Path) -> None:
    import obstore

    from roundweave.storage.places.objects import client_of

    bucket = s3.bucket()
    (tmp_path / "a.zarr").mkdir()
    zarr_group(tmp_path, INPUTS, TARGETS), parquet_files(tmp_path, INPUTS, TARGETS)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            obstore.put(*client_of(f"{bucket}/data/{path.relative_to(tmp_path)}"), path.read_bytes())
    for text in (f"zarr:{bucket}/data/a.zarr", f"parquet:{bucket}/data/*.parquet"):
        train = opened(text)
        assert train.read(np.array([70, 2])).inputs.tolist() == INPUTS[[70, 2]].tolist()
        assert train.files


CHANGED = [(npy, "a.npy"), (zarr_group, "a.zarr/inputs/c/0/0"), (parquet_files, "b.parquet")]


@pytest.mark.parametrize(("write", "file"), CHANGED)
def test_what_shows_that_files_are_the_same(write, file: str, tmp_path: Path, monkeypatch, flip) -> None:
    text = write(tmp_path, INPUTS, TARGETS)
    monkeypatch.setattr(stored_files, "EDGES", 20)

    def shown() -> list[object]:
        """As small files, as large ones, and as large ones that are read whole."""
        found = []
        for limit, whole in ((10**9, False), (0, False), (0, True)):
            monkeypatch.setattr(stored_files, "HASHED", limit)
            found.append(rw.find_source(text, hash_data=whole).load(0, 1).train.files)
        return found

    os.utime(tmp_path / file, ns=(1, 1))
    before = shown()
    os.utime(tmp_path / file, ns=(2, 2))
    assert [now == then for now, then in zip(shown(), before, strict=True)] == [True, False, True]
    flip(tmp_path / file, min(150, (tmp_path / file).stat().st_size // 2))
    os.utime(tmp_path / file, ns=(1, 1))
    assert [now == then for now, then in zip(shown(), before, strict=True)] == [False, True, False]


@pytest.mark.parametrize(("write", "file"), but_first([CHANGED[2]], [CHANGED[0]]))
def test_a_file_that_has_changed_is_named(write, file: str, train, tmp_path: Path, flip) -> None:
    options = OPTIONS | {"data": write(tmp_path, INPUTS, TARGETS), "name": "a"}
    run = train(rounds=1, **options)
    flip(tmp_path / file, 300)
    forget_examples()
    with pytest.raises(ExperimentDiffers, match=rf"data: {file} has changed since the run began"):
        train(rounds=2, **options)
    assert f"{file} has changed since the run began" in str(run.replay().key["data"])
    flip(tmp_path / file, 300)
    forget_examples()
    assert train(rounds=2, **options).done == 2


def test_a_worker_names_the_file_that_has_changed(tmp_path: Path, flip) -> None:
    partitions = Partitions(rw.find_source(parquet_files(tmp_path, INPUTS, TARGETS)), rw.Split(2))
    described = partitions.describe(0)
    known = replace(partitions, digests=(described.digest,), files=tuple(described.files.items()))
    assert len(known.load(0, 0)) == 45
    flip(tmp_path / "b.parquet", 300)
    forget_examples()
    with pytest.raises(DataError, match=r"^b.parquet has changed since the run began; restore them$"):
        known.load(0, 0)


def test_a_file_of_a_partition_of_its_own_is_named_with_it(train, tmp_path: Path, flip) -> None:
    (tmp_path / "b").mkdir()
    data = (npy(tmp_path, INPUTS, TARGETS), npy(tmp_path / "b", INPUTS[:50], TARGETS[:50]))
    run = train(data=data, partitions=2, rounds=1)
    flip(tmp_path / "b" / "a.npy", 300)
    forget_examples()
    assert run.replay().key == {"data": "partition 1: a.npy has changed since the run began"}


@pytest.mark.parametrize(("write", "file"), but_first(CHANGED[:1], CHANGED))
def test_a_file_that_is_gone_is_named_and_the_rounds_before_are_kept(write, file, train, tmp_path: Path) -> None:
    def lose(commit) -> None:
        (tmp_path / file).unlink(missing_ok=True)

    options = OPTIONS | {"data": write(tmp_path, INPUTS, TARGETS), "rounds": 3, "batch_size": 64}
    with pytest.raises((RoundFailed, DataError), match=rf"there is no file \S+{file}; restore it"):
        train(name="a", on_commit=lose, **options)
    assert rw.open_run("a").done in (1, 2)


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (TARGETS[:99], r"a(\.npy|\.zarr/inputs) and \S+targets\S* arrays have shapes \(100, 6\), \(99,\)"),
        (TARGETS + 0j, r"targets\S* holds \S+, and examples are numbers"),
        (np.full(100, np.nan), r"targets\S*: 100 of 100 examples have NaN"),
    ],
)
@pytest.mark.parametrize("write", [npy, zarr_group])
def test_arrays_that_do_not_fit_are_one_line(write, targets, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        opened(write(tmp_path, INPUTS, targets))


def test_a_parquet_file_with_other_columns_is_named(tmp_path: Path) -> None:
    parquet_files(tmp_path, INPUTS, TARGETS)
    pd.DataFrame({"a": INPUTS[:, 0], "label": TARGETS}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet has nothing in column 'b', and a.parquet float"):
        opened(f"parquet:{tmp_path}")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1.0, None], "column 'a' lacks 1 values"),
        (["x", "y"], "column 'a' holds string, and inputs are numbers"),
        ([[1.0], [1.0, 2.0]], "column 'a' holds list"),
        (pa.array([], pa.float32()), r"\*.parquet has 0 rows"),
    ],
)
def test_columns_of_parquet_files_that_are_no_inputs_are_one_line(values, says: str, tmp_path: Path) -> None:
    kinds = pa.array(range(len(values)), pa.int64())
    pq.write_table(pa.table({"a": values, "kind": kinds}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=says):
        opened(f"parquet:{tmp_path}").read(np.array([0]))


def test_other_arrays_are_one_line(tmp_path: Path) -> None:
    npy(tmp_path, np.asfortranarray(INPUTS), TARGETS)
    zarr.create_group(tmp_path / "b.zarr").create_array("x", data=INPUTS)
    with pytest.raises(DataError, match=r"a.npy is in Fortran's order"):
        opened(f"npy:{tmp_path}/a.npy")
    npy(tmp_path, INPUTS, np.array([None] * 100))
    with pytest.raises(DataError, match=r"targets.npy cannot be read as an array of numbers"):
        opened(f"npy:{tmp_path}/a.npy")
    with pytest.raises(DataError, match=r"b.zarr has no array inputs; it has x"):
        opened(f"zarr:{tmp_path}/b.zarr")


def test_what_was_appended_to_a_zarr_array_is_read_and_what_stands_for_other_numbers_is_not(
    tmp_path: Path,
) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    for name, values in (("inputs", INPUTS), ("targets", TARGETS)):
        group.create_array(name, data=values[:60], chunks=(20, *values.shape[1:]))
    with pytest.warns(zarr.errors.ZarrUserWarning):
        zarr.consolidate_metadata(group.store)
    for name, values in (("inputs", INPUTS), ("targets", TARGETS)):
        zarr.open_array(tmp_path / f"a.zarr/{name}", mode="a").append(values[60:])
    read = opened(f"zarr:{tmp_path}/a.zarr")
    assert np.array_equal(read.read(np.arange(100)).inputs, INPUTS)
    group["inputs"].attrs["missing_value"] = INPUTS[7].ravel()[0].item()
    with pytest.raises(DataError, match=r"inputs lacks \d+ values, .* in the file; fill them"):
        opened(f"zarr:{tmp_path}/a.zarr").read(np.arange(100))
    group["inputs"].attrs["scale_factor"] = 0.5
    with pytest.raises(DataError, match="has scale_factor, so its numbers are encoded"):
        opened(f"zarr:{tmp_path}/a.zarr")


MEASURED = """
import sys, psutil, threading, time
from pathlib import Path
import pandas, pyarrow.parquet, zarr
from tests.training import trained
root, data = Path(sys.argv[1]), sys.argv[2]
options = dict(partitions=4, split="contiguous", rounds=2, algorithm="fed_avg", local_epochs=1, batch_size=128)
trained(root, data="digits", **options)
process, peak = psutil.Process(), [0]
before = process.memory_info().rss
def watch():
    while True:
        peak[0] = max(peak[0], process.memory_info().rss)
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
run = trained(root, data=data, **options)
assert run.done == 2
print(peak[0] - before)
"""


def lists(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(inputs.ravel()), inputs.shape[1])
    table = pa.table({"pixels": pixels, "label": labels})
    pq.write_table(table, folder / "a.parquet", row_group_size=4000, compression="none")
    return f"parquet:{folder}/*.parquet"


@pytest.mark.slow
@pytest.mark.parametrize(
    "write", [npy, partial(zarr_group, chunks=(2000, 784)), lists], ids=["npy", "zarr", "parquet"]
)
def test_memory_grows_by_less_than_a_third_of_the_files(write, tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).random((200_000, 784), np.float32)
    data = write(tmp_path, inputs, np.arange(len(inputs)) % 10)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "runs"), data]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    assert grown < inputs.nbytes / 3
