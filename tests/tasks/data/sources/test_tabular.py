"""Tables: numbers in, labels or numbers out, and one clear line for what cannot be learned from."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from roundweave import Partitions, Split, find_source, label_counts
from roundweave.storage.errors import DataError

TABLE = pd.DataFrame({"age": [30, 41, 25, 60], "height": [1.5, 1.75, 2.0, 1.25]})
TABLE = TABLE.assign(ward=["east", "west", "east", "north"], kind=["pear", "apple", "fig", "apple"])


LACKING = TABLE[["age", "height"]].assign(kind=["a", None, "b", None])


@pytest.fixture(params=["csv", "parquet"])
def write(request, tmp_path):
    """Writes a table; gives the data's name."""

    def file(table: pd.DataFrame) -> str:
        path = tmp_path / f"t.{request.param}"
        table.to_csv(path, index=False) if request.param == "csv" else table.to_parquet(path, index=False)
        return f"{request.param}:{path}"

    return file


def test_texts_are_labels_in_sorted_order_and_numbers_inputs(write) -> None:
    dataset = find_source(write(TABLE.drop(columns="ward"))).load(0, 1)
    assert dataset.train.inputs.dtype == torch.float64
    assert dataset.train.inputs.tolist() == [[30, 1.5], [41, 1.75], [25, 2.0], [60, 1.25]]
    assert (dataset.train.targets.dtype, dataset.train.targets.tolist()) == (torch.int64, [2, 0, 1, 0])


@pytest.mark.parametrize(("target", "dtype"), [("height", torch.float64), ("age", torch.int64)])
def test_a_target_may_be_named(write, target, dtype) -> None:
    dataset = find_source(write(TABLE[["age", "height"]].assign(more=1)), target=target).load(0, 1)
    assert (dataset.train.targets.dtype, dataset.train.targets.tolist()) == (dtype, TABLE[target].tolist())
    assert dataset.train.inputs.shape == (4, 2)


@pytest.mark.parametrize("by", ["ward", "age"])
def test_a_column_to_split_by_is_no_input(write, by: str) -> None:
    table = TABLE if by == "ward" else TABLE.drop(columns="ward")
    source = find_source(write(table), by=by)
    dataset = source.load(0, 1)
    assert dataset.train.inputs.shape == (4, 3 - (by == "age") - 1)
    assert dataset.columns[by].tolist() == TABLE[by].tolist()
    owner = Partitions(source, Split(3 + (by == "age"), f"by:{by}"), held_out=0).assignment(0)
    assert owner.tolist() == ([0, 2, 0, 1] if by == "ward" else [1, 2, 0, 3])


def test_the_last_column_that_does_not_split_is_the_target(write) -> None:
    table = TABLE[["age", "kind", "ward"]]
    assert find_source(write(table), by="ward").load(0, 1).train.targets.tolist() == [2, 0, 1, 0]


def test_booleans_are_numbers(write) -> None:
    table = pd.DataFrame({"a": [True, False], "b": [False, True]})
    examples = find_source(write(table)).load(0, 1).train
    assert (examples.inputs.tolist(), examples.targets.tolist()) == ([[1], [0]], [0, 1])


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        (
            TABLE,
            {},
            "column 'ward' holds str, and inputs are numbers; give --encode one-hot, or leave it out of --columns",
        ),
        (TABLE, {"target": "weight"}, "has no column 'weight'; it has age, height, ward, kind"),
        (TABLE, {"by": "street"}, "has no column 'street'; it has age, height, ward, kind"),
        (TABLE[["kind"]], {}, "has 4 rows and 0 columns of inputs"),
        (TABLE[["age", "kind"]], {"by": "age"}, "has 4 rows and 0 columns of inputs"),
        (TABLE[:0], {}, "has 0 rows"),
        (LACKING, {}, "2 values are missing, the first in row 2 .*, column 'kind'"),
    ],
)
def test_what_cannot_be_learned_from_is_one_clear_line(write, table, options, says: str) -> None:
    data = write(table)
    with pytest.raises(DataError, match=says) as caught:
        find_source(data, **options).load(0, 1)
    assert data.partition(":")[2] in str(caught.value)


def test_a_column_without_a_name_is_refused(tmp_path) -> None:
    TABLE.to_csv(tmp_path / "indexed.csv")
    with pytest.raises(DataError, match=r"indexed\.csv: column 1 has no name; give it one, or leave it out$"):
        find_source(f"csv:{tmp_path}/indexed.csv").load(0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1.5,2,0\n3,4,1\n", "its first row is of numbers; put a row of names before it"),
        ("a,kind\n7,1,0\n8,3,1\n", "its rows have more values than there are names"),
    ],
)
def test_rows_and_columns_that_pandas_takes_for_names_are_refused(tmp_path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=rf"t\.csv: {says}"):
        find_source(f"csv:{tmp_path}/t.csv").load(0, 1)


@pytest.mark.parametrize("data", ["csv:{}/t.csv", "parquet:{}/t.parquet", "parquet:{}", "parquet:{}/*.parquet"])
def test_a_column_in_the_name_of_a_folder_is_refused_unless_the_file_has_it(tmp_path, data: str) -> None:
    (folder := tmp_path / "year=2024").mkdir()
    source = find_source(data.format(folder), target="age")
    for table in (TABLE[["age", "height"]].assign(year=2024), TABLE[["age", "height"]]):
        table.to_csv(folder / "t.csv", index=False)
        table.to_parquet(folder / "t.parquet", index=False)
        if "year" in table:
            assert source.load().input_names == ("height", "year")
    with pytest.raises(DataError, match="column year is in the folder's name alone; write it into the files"):
        source.load()


@pytest.mark.parametrize("data", ["day.parquet", "*.parquet"])
@pytest.mark.parametrize(
    ("column", "target", "says"),
    [
        ([Decimal("9.50"), Decimal("10.00")], "price", "holds decimals; code them as whole numbers"),
        (pd.to_datetime(["2024-01-01", "2025-01-01"]), "price", "holds (datetime64|timestamp)s; code them"),
        ([2**53 + 1, 2**53 + 2], "a", r"has whole numbers beyond 2\^53; subtract a constant"),
    ],
)
def test_what_is_no_label_and_no_float_is_refused_by_its_column(data, column, target, says, tmp_path) -> None:
    pd.DataFrame({"a": [1.0, 2.0], "x": 1.5, "price": column}).to_parquet(tmp_path / "day.parquet")
    with pytest.raises(DataError, match=rf"column 'price' {says}"):
        find_source(f"parquet:{tmp_path}/{data}", target=target).load(0, 1).take(np.arange(2), "float64")


def test_what_labels_were_called_is_kept(write) -> None:
    partitions = Partitions(find_source(write(TABLE.drop(columns="ward"))), Split(1), held_out=0.0)
    assert partitions.describe(0).class_names == ("apple", "fig", "pear")
    assert label_counts(partitions).loc[0].to_dict() == {"apple": 2, "fig": 1, "pear": 1, "size": 4}


def test_a_table_that_is_far_larger_than_its_file_is_refused(tmp_path, monkeypatch) -> None:
    class Little:
        available = 1_000_000

    pd.DataFrame({"x": np.zeros(1_000_000), "y": 0}).to_parquet(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < Little.available
    monkeypatch.setattr("psutil.virtual_memory", Little)
    with pytest.raises(DataError, match=r"a\.parquet holds 0\.0 GB, and 0\.0 GB of memory are free"):
        find_source(f"parquet:{tmp_path / 'a.parquet'}").load(0, 1)


def test_labels_that_look_like_numbers_are_read_as_a_whole(tmp_path) -> None:
    """In pieces, as pandas reads a large file by default, 001 would be a number where a piece has no letter."""
    rows = "".join(f"{'1,' * 40}{label}\n" for label in ["001", "002"] * 30_000 + ["X10"])
    (tmp_path / "codes.csv").write_text(",".join(f"c{n}" for n in range(40)) + f",code\n{rows}")
    assert find_source(f"csv:{tmp_path}/codes.csv").load(0, 1).class_names == ("001", "002", "X10")
