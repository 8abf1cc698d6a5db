"""Files larger than memory: their rows come back, and what is wrong with them is one line that names the file."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
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
from roundweave.tasks.data.sources.table import find_source
from roundweave.tasks.data.sources.tabular import Tabular
from roundweave.tasks.data.splits.split import Split
from tests.tasks.sampled import sampled

INPUTS = np.random.default_rng(0).random((100, 6)).astype(np.float32)
TARGETS = (INPUTS.sum(1) > 3).astype(np.int32)
NAMES = np.array(["apple", "big"])


def npy(folder: Path, inputs: np.ndarray = INPUTS, targets: np.ndarray = TARGETS) -> str:
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", targets)
    return f"npy:{folder}/inputs.npy"


def zarr_group(folder: Path, inputs: np.ndarray = INPUTS, targets: np.ndarray = TARGETS, **how: object) -> str:
    group = zarr.create_group(folder / "a.zarr")
    group.create_array("inputs", data=inputs, **{"chunks": (16, *(3 for _ in inputs.shape[1:]))} | how)
    group.create_array("targets", data=targets)
    return f"zarr:{folder}/a.zarr"


def shards(folder: Path) -> str:
    return zarr_group(folder, chunks=(8, 3), shards=(16, 6))


def parquet(folder: Path) -> str:
    """Two files with row groups of at most 16 rows; labels are texts."""
    for number, rows in enumerate((slice(0, 40), slice(40, 100))):
        table = pd.DataFrame(INPUTS[rows], columns=list("abcdef")).assign(kind=NAMES[TARGETS[rows]])
        table.to_parquet(folder / f"part-{number}.parquet", row_group_size=16, index=False)
    return f"parquet:{folder}/part-*.parquet"


KINDS = [npy, zarr_group, shards, parquet]


@pytest.fixture(autouse=True)
def _opened_anew() -> None:
    forget_examples()


@pytest.mark.parametrize("write", KINDS)
def test_any_rows_come_back_in_their_order(write, tmp_path: Path) -> None:
    source = find_source(write(tmp_path))
    train = pickle.loads(pickle.dumps(source)).load(0, 1).train
    assert len(train) == 100
    assert (train.targets.dtype, train.targets.tolist()) == (torch.int64, TARGETS.tolist())
    for rows in (np.array([99]), np.array([3, 0, 99, 3, 50]), np.random.default_rng(1).permutation(100)):
        found = train.read(rows)
        assert (found.inputs.dtype, found.inputs.tolist()) == (torch.float32, INPUTS[rows].tolist())
        assert found.targets.tolist() == TARGETS[rows].tolist()


@pytest.mark.parametrize("name", [None, "day"])
def test_the_index_of_pandas_is_no_column(tmp_path: Path, name: str | None) -> None:
    """It would be the last column otherwise, and so the target."""
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 6.0, 7.0, 8.0], "c": [0, 0, 1, 0]})
    table[table.a != 2].rename_axis(name).to_parquet(tmp_path / "kept.parquet")
    for data in (f"parquet:{tmp_path}", f"parquet:{tmp_path}/kept.parquet"):
        train = find_source(data).load(0, 1).train.read(np.arange(3))
        assert (train.inputs.tolist(), train.targets.tolist()) == ([[1.0, 5.0], [3.0, 7.0], [4.0, 8.0]], [0, 1, 0])


def test_groups_are_what_is_stored_together(tmp_path: Path) -> None:
    sizes = {write: find_source(write(tmp_path)).load(0, 1).train.groups for write in (zarr_group, parquet)}
    assert np.bincount(sizes[zarr_group]).tolist() == [16] * 6 + [4]
    assert np.bincount(sizes[parquet]).tolist() == [16, 16, 8, 16, 16, 16, 12]
    assert find_source(npy(tmp_path)).load(0, 1).train.groups is None


@pytest.mark.parametrize(("write", "split"), sampled(2, KINDS, ["iid", "contiguous", "dirichlet:0.5"]))
def test_a_run_on_files_has_the_same_bits_when_it_is_replayed(write, split: str, train, tmp_path: Path) -> None:
    options = {"local_steps": 3, "batch_size": 8, "rounds": 2, "partitions": 3, "algorithm": "fed_avg"}
    run = train(data=write(tmp_path), split=split, **options)
    assert run.replay([1, 2]).identical


@pytest.mark.parametrize("write", [npy, zarr_group, parquet])
def test_a_number_that_is_none_refuses_its_partition_and_is_never_left_out_of_a_score(
    write, train, tmp_path: Path, monkeypatch
) -> None:
    inputs = INPUTS.copy()
    inputs[70, 2] = np.inf  # pandas would store NaN as a value that is missing
    monkeypatch.setitem(globals(), "INPUTS", inputs)
    options = {"split": "contiguous", "partitions": 2, "algorithm": "fed_avg", "rounds": 1}
    options["data"] = write(tmp_path, *([] if write is parquet else [inputs]))
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
    parquet(tmp_path)
    assert isinstance(find_source(f"parquet:{tmp_path}/part-0.parquet"), Tabular)
    for text in (f"parquet:{tmp_path}", f"parquet:{tmp_path}/*.parquet"):
        dataset = find_source(text, target="a", by="kind").load(0, 1)
        assert dataset.train.read(np.array([41])).inputs.tolist() == [INPUTS[41, 1:].tolist()]
        assert dataset.columns["kind"].tolist() == NAMES[TARGETS].tolist()
        assert dataset.train.targets.dtype == torch.float64


def test_lists_of_a_fixed_size_are_arrays(tmp_path: Path) -> None:
    pixels = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(range(12)), 3), 2)
    table = pa.table({"pixels": pixels, "age": [1.5, 2.5], "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    several = find_source(f"parquet:{tmp_path}").load(0, 1).train.read(np.array([1]))
    assert several.inputs["pixels"].tolist() == [[[6, 7, 8], [9, 10, 11]]]
    assert several.inputs["age"].tolist() == [2.5]
    pq.write_table(table.drop(["age"]), tmp_path / "a.parquet")
    assert find_source(f"parquet:{tmp_path}").load(0, 1).train.read(np.array([0])).inputs.shape == (1, 2, 3)


@pytest.mark.parametrize("write", [npy, zarr_group])
def test_targets_may_be_masks(write, tmp_path: Path) -> None:
    masks = np.zeros((100, 2, 2), np.uint8)
    masks[70, 1, 1] = 4
    partitions = Partitions(find_source(write(tmp_path, INPUTS[:, :4].reshape(100, 2, 2), masks)), Split(2))
    described = partitions.describe(0)
    assert (described.targets, described.labels, described.classes) == ((2, 2), True, 5)
    assert partitions.load(0, 0).train.first(1).targets.dtype == torch.int64


def test_targets_may_have_another_file(tmp_path: Path) -> None:
    npy(tmp_path)
    np.save(tmp_path / "ages.npy", np.arange(100) / 2)
    assert find_source(f"npy:{tmp_path}/inputs.npy", target="ages.npy").load(0, 1).train.targets[3] == 1.5


def test_a_bucket_holds_them_as_well(s3, tmp_path: Path) -> None:
    import obstore

    from roundweave.storage.places.objects import client_of

    bucket = s3.bucket()
    (tmp_path / "a.zarr").mkdir()
    zarr_group(tmp_path), parquet(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            obstore.put(*client_of(f"{bucket}/data/{path.relative_to(tmp_path)}"), path.read_bytes())
    for text in (f"zarr:{bucket}/data/a.zarr", f"parquet:{bucket}/data/*.parquet"):
        train = find_source(text).load(0, 1).train
        assert train.read(np.array([70, 2])).inputs.tolist() == INPUTS[[70, 2]].tolist()
        assert train.files


CHANGED = [(npy, "inputs.npy"), (zarr_group, "a.zarr/inputs/c/0/0"), (parquet, "part-0.parquet")]


@pytest.mark.parametrize(("write", "file"), CHANGED)
def test_what_shows_that_files_are_the_same(write, file: str, tmp_path: Path, monkeypatch, flip) -> None:
    text = write(tmp_path)
    monkeypatch.setattr(stored_files, "EDGES", 20)

    def shown() -> list[object]:
        """As small files, as large ones, and as large ones that are read whole."""
        found = []
        for limit, whole in ((10**9, False), (0, False), (0, True)):
            monkeypatch.setattr(stored_files, "HASHED", limit)
            found.append(find_source(text, hash_data=whole).load(0, 1).train.files)
        return found

    os.utime(tmp_path / file, ns=(1, 1))
    before = shown()
    os.utime(tmp_path / file, ns=(2, 2))
    assert [now == then for now, then in zip(shown(), before, strict=True)] == [True, False, True]
    flip(tmp_path / file, 150)
    os.utime(tmp_path / file, ns=(1, 1))
    assert [now == then for now, then in zip(shown(), before, strict=True)] == [False, True, False]


@pytest.mark.parametrize(("data", "file"), [(npy, "inputs.npy"), (parquet, "part-1.parquet")])
def test_a_file_that_has_changed_is_named(data, file: str, train, tmp_path: Path, flip) -> None:
    options = {"data": data(tmp_path), "name": "a", "partitions": 2, "algorithm": "fed_avg", "batch_size": 8}
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
    partitions = Partitions(find_source(parquet(tmp_path)), Split(2))
    described = partitions.describe(0)
    known = replace(partitions, digests=(described.digest,), files=tuple(described.files.items()))
    assert len(known.load(0, 0).train) == 45
    flip(tmp_path / "part-1.parquet", 300)
    forget_examples()
    with pytest.raises(DataError, match=r"^part-1.parquet has changed since the run began; restore them$"):
        known.load(0, 0)


def test_a_file_of_a_partition_of_its_own_is_named_with_it(train, tmp_path: Path, flip) -> None:
    (tmp_path / "b").mkdir()
    data = (npy(tmp_path), npy(tmp_path / "b", INPUTS[:50], TARGETS[:50]))
    run = train(data=data, partitions=2, rounds=1)
    flip(tmp_path / "b" / "inputs.npy", 300)
    forget_examples()
    assert run.replay().key == {"data": "partition 1: inputs.npy has changed since the run began"}


@pytest.mark.parametrize(("data", "file"), CHANGED)
def test_a_file_that_is_gone_is_named_and_the_rounds_before_are_kept(data, file, train, tmp_path: Path) -> None:
    def lose(commit) -> None:
        (tmp_path / file).unlink(missing_ok=True)

    options = {"data": data(tmp_path), "partitions": 2, "rounds": 3, "algorithm": "fed_avg", "batch_size": 64}
    with pytest.raises((RoundFailed, DataError), match=rf"there is no file \S+{file}; restore it"):
        train(name="a", on_commit=lose, **options)
    assert rw.open_run("a").done in (1, 2)


@pytest.mark.parametrize(
    ("inputs", "targets", "says"),
    [
        (INPUTS, TARGETS[:99], r"inputs\S* and \S+targets\S* there are arrays of shapes \(100, 6\), \(99,\)"),
        (INPUTS, TARGETS + 0j, r"targets\S* holds \S+, and examples are numbers"),
        (INPUTS, np.full(100, np.nan), r"targets\S*: 100 of 100 examples have NaN"),
        (INPUTS, -TARGETS, r"targets\S*: label -1 of example \d+ is out of range"),
    ],
)
@pytest.mark.parametrize("write", [npy, zarr_group])
def test_arrays_that_do_not_fit_are_one_line(write, inputs, targets, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        find_source(write(tmp_path, inputs, targets)).load(0, 1)


def test_other_files_are_one_line(tmp_path: Path) -> None:
    parquet(tmp_path)
    npy(tmp_path, INPUTS, np.array([None] * 100))
    zarr.create_group(tmp_path / "b.zarr").create_array("x", data=INPUTS)
    pq.write_table(
        pa.table({"a": pa.array([1, 2], pa.float32()), "kind": ["x", "y"]}), tmp_path / "part-2.parquet"
    )
    for folder, table in {
        "gaps": pa.table({"a": [1.0, None], "kind": [0, 1]}),
        "texts": pa.table({"a": ["x", "y"], "kind": [0, 1]}),
        "lists": pa.table({"a": [[1.0], [1.0, 2.0]], "kind": [0, 1]}),
        "none": pa.table({"a": pa.array([], pa.float32()), "kind": pa.array([], pa.int64())}),
    }.items():
        (tmp_path / folder).mkdir()
        pq.write_table(table, tmp_path / folder / "a.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    np.save(tmp_path / "f.npy", np.asfortranarray(INPUTS))
    cases = {
        f"parquet:{tmp_path}/part-*.parquet": "part-2.parquet has nothing in column 'b', and part-0.parquet float",
        f"parquet:{tmp_path}/x*.parquet": r"there is no file x\*.parquet in",
        f"parquet:{tmp_path}/broken*": "broken.parquet cannot be read as parquet",
        f"parquet:{tmp_path}/texts": "column 'a' holds string, and inputs are numbers",
        f"parquet:{tmp_path}/lists": "column 'a' holds list",
        f"parquet:{tmp_path}/none": r"none/\*.parquet has 0 rows",
        f"npy:{tmp_path}/inputs.npy": "targets.npy cannot be read as an array of numbers",
        f"npy:{tmp_path}/f.npy": "f.npy is in Fortran's order",
        f"npy:{tmp_path}/nothing.npy": "there is no file .*nothing.npy",
        f"zarr:{tmp_path}/b.zarr": "b.zarr has no array inputs; it has x",
        f"zarr:{tmp_path}/nothing.zarr": "there is no file .* in .*nothing.zarr",
    }
    for text, says in cases.items():
        with pytest.raises(DataError, match=says):
            find_source(text).load(0, 1)
    with pytest.raises(DataError, match="column 'a' lacks 1 values"):
        find_source(f"parquet:{tmp_path}/gaps").load(0, 1).train.read(np.array([0]))


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "zarr", "parquet"])
def test_memory_grows_by_less_than_a_third_of_the_files(kind: str, tmp_path: Path) -> None:
    rows, step, columns = 200_000, 20_000, 784
    labels = np.arange(rows) % 10
    np.save(tmp_path / "targets.npy", labels)
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("targets", data=labels)
    chunked = group.create_array("inputs", shape=(rows, columns), chunks=(2000, columns), dtype="f4")
    mapped = np.lib.format.open_memmap(tmp_path / "inputs.npy", "w+", "f4", (rows, columns))
    for first in range(0, rows, step):
        part = np.random.default_rng(first).random((step, columns), np.float32)
        if kind == "npy":
            mapped[first : first + step] = part
        elif kind == "zarr":
            chunked[first : first + step] = part
        else:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), columns)
            table = pa.table({"pixels": lists, "label": labels[first : first + step]})
            pq.write_table(table, tmp_path / f"{first}.parquet", row_group_size=4000, compression="none")
    del mapped
    text = {
        "npy": f"npy:{tmp_path}/inputs.npy",
        "zarr": f"zarr:{tmp_path}/a.zarr",
        "parquet": f"parquet:{tmp_path}",
    }
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "runs"), text[kind]]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    assert grown < rows * columns * 4 / 3
