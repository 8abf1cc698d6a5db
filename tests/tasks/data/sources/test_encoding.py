"""Texts in a table's inputs, and texts as labels, become numbers that mean the same in each file."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import roundweave as rw
from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.data.meaning import Meaning, common
from roundweave.tasks.data.sources.encoding import encoded

HERE = pd.DataFrame(
    {"age": [30, 41, 25], "city": ["Rome", "Oslo", "Rome"], "sex": ["m", "f", "m"], "ill": [1, 0, 1]}
)
THERE = HERE.assign(city=["Lima, Sur", "Rome", "Rome"])


@pytest.fixture
def tables(tmp_path):
    """The two tables as files."""
    HERE.to_csv(tmp_path / "here.csv", index=False)
    THERE.to_csv(tmp_path / "there.csv", index=False)
    return [f"csv:{tmp_path}/{name}.csv" for name in ("here", "there")]


def test_each_text_is_a_column_or_each_column_has_its_number(tables) -> None:
    one_hot = rw.find_source(tables[0], encode="one-hot").load(0, 1)
    assert one_hot.input_names == ("age", "city=Oslo", "city=Rome", "sex=f", "sex=m")
    assert one_hot.train.inputs.tolist() == [[30, 0, 1, 0, 1], [41, 1, 0, 1, 0], [25, 0, 1, 0, 1]]
    ordinal = rw.find_source(tables[0], encode="ordinal").load(0, 1)
    assert ordinal.input_names == ("age", 'city=["Oslo", "Rome"]', 'sex=["f", "m"]')
    assert ordinal.train.inputs.tolist() == [[30, 1, 1], [41, 0, 0], [25, 1, 1]]


def test_columns_are_taken_in_the_order_that_is_given(tables) -> None:
    dataset = rw.find_source(tables[0], columns=("sex", "age"), encode="one-hot").load(0, 1)
    assert dataset.input_names == ("sex=f", "sex=m", "age")
    assert rw.find_source(tables[0], columns=("age",)).load(0, 1).input_names == ("age",)


def test_what_a_training_learned_of_texts_holds_for_other_data(tables) -> None:
    known = Meaning(input_names=("age", "city=Oslo", "city=Paris", "city=Rome", "sex=f", "sex=m"))
    arranged = rw.find_source(tables[0], encode="one-hot").arranged(known).load(0, 1)
    assert arranged.input_names == known.input_names
    assert arranged.train.inputs[:, 1:4].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    with pytest.raises(DataError, match="'city' has 'Lima, Sur', which is unknown; known are Oslo, Paris, Rome"):
        rw.find_source(tables[1], encode="one-hot").arranged(known).load(0, 1)


@pytest.mark.parametrize(
    ("encode", "names"),
    [
        ("one-hot", ["age", "city=Lima, Sur", "city=Oslo", "city=Rome", "sex=f", "sex=m"]),
        ("ordinal", ["age", 'sex=["f", "m"]', 'city=["Lima, Sur", "Oslo", "Rome"]']),
    ],
)
def test_partitions_that_have_other_texts_have_the_columns_of_all(tables, train, encode, names) -> None:
    run = train(data=tuple(tables), partitions=2, encode=encode, held_out=0.34, rounds=2, lr=1e-4)
    assert run.attributes["data"]["input_names"] == names
    assert run.round(2).refused == {}
    assert run.replay(2).identical


def test_row_groups_are_encoded_alike(tmp_path) -> None:
    for name, table in (("a", HERE), ("b", THERE)):
        table.to_parquet(tmp_path / f"{name}.parquet", index=False, row_group_size=2)
    of_files = rw.find_source(f"parquet:{tmp_path}", encode="one-hot").load(0, 1)
    pd.concat([HERE, THERE]).to_csv(tmp_path / "all.csv", index=False)
    whole = rw.find_source(f"csv:{tmp_path}/all.csv", encode="one-hot").load(0, 1)
    assert of_files.input_names == whole.input_names
    assert torch.equal(of_files.take(np.arange(6), "float64").inputs, whole.train.inputs)


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs", "N"])), min_size=1, max_size=9))
def test_numbers_can_be_read_back_to_texts(texts: list[str]) -> None:
    column = pd.Series(texts, name="c", dtype=object)
    one_hot = encoded(column, "one-hot", (), "t")
    names, rows = [*one_hot], np.stack([*one_hot.values()], axis=1)
    assert [names[place].removeprefix("c=") for place in rows.argmax(1)] == texts
    assert (rows.sum(1) == 1).all()
    ((name, numbers),) = encoded(column, "ordinal", (), "t").items()
    assert [json.loads(name.removeprefix("c="))[int(number)] for number in numbers] == texts


def test_other_columns_are_not_joined() -> None:
    assert common([Meaning(input_names=("a", "b=x")), Meaning(input_names=("b=y", "a"))]).input_names == ()
    assert common([Meaning(input_names=("a",)), Meaning(input_names=("b",))]).input_names == ()


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        (HERE, {"columns": ("age", "town")}, "has no column 'town'; it has age, city, sex, ill"),
        (
            HERE,
            {"columns": ("age", "ill")},
            "column 'ill' is the target's or the split's, no input; give a target",
        ),
        (HERE.assign(age=[1, 2, "?"]), {"encode": "ordinal"}, r"'age' has numbers and the text '\?'; give"),
        (HERE.rename(columns={"sex": "a=b"}), {"encode": "one-hot"}, "'a=b' has the name of an encoded one"),
        (
            pd.DataFrame({"name": [f"p{n}" for n in range(30)], "ill": 0}),
            {"encode": "ordinal"},
            "30 different texts",
        ),
    ],
)
def test_columns_that_cannot_be_inputs_are_refused(tmp_path, table, options, says) -> None:
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=says):
        rw.find_source(f"csv:{tmp_path}/t.csv", **options).load(0, 1)


def test_only_a_table_has_columns_to_encode() -> None:
    with pytest.raises(UsageError, match="data digits is no table; leave columns, encode out"):
        rw.find_source("digits", columns=("a",), encode="one-hot")


WORDS = ["fig", "apple", "fig", "pear"]


@pytest.mark.parametrize(
    "labels",
    [WORDS, np.array(WORDS), np.array(WORDS, dtype=object), pd.Series(WORDS), pd.Series(WORDS, dtype="category")],
    ids=["list", "array", "objects", "series", "categories"],
)
def test_labels_of_a_function_may_be_texts(labels) -> None:
    def data():
        held = (np.zeros((2, 3)), ["pear", "fig"])
        return (np.zeros((4, 3)), labels), held

    dataset = rw.find_source(data).load(0, 1)
    assert dataset.class_names == ("apple", "fig", "pear")
    assert dataset.train.targets.tolist() == [1, 0, 1, 2]
    assert dataset.held_out.targets.tolist() == [2, 1]


def test_a_table_with_unlike_numbers_and_one_column_of_labels_is_read() -> None:
    """Of true and false beside numbers; labels in a table are none in a column."""
    table = pd.DataFrame({"a": [0.5, 1.5], "b": [True, False]})
    dataset = rw.find_source(lambda: (table, table[["b"]].astype(int))).load(0, 1)
    assert dataset.train.inputs.tolist() == [[0.5, 1], [1.5, 0]]
    assert dataset.train.targets.tolist() == [[1], [0]]
    assert (dataset.input_names, dataset.class_names) == (("a", "b"), ())


def test_partitions_of_a_function_number_their_texts_alike(train) -> None:
    def data(partition, partitions):
        inputs = np.arange(12.0).reshape(6, 2) + partition
        return inputs, ["b", "c"] * 3 if partition else ["a", "c"] * 3

    run = train(data=data, partitions=2, rounds=1, lr=1e-3, held_out=0.34)
    assert run.attributes["data"]["class_names"] == ["a", "b", "c"]
    assert run.replay(1).identical
