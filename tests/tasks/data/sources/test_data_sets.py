"""Data sets of torch and Hugging Face: their examples are read where they are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from roundweave.storage.errors import DataError
from roundweave.tasks.data.datasets import Dataset, Reader
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.own_code.code import find_code

DATA_SETS = """
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

class Pairs(Dataset):
    def __init__(self, pairs): self.pairs = pairs
    def __len__(self): return len(self.pairs)
    def __getitem__(self, number): return self.pairs[number]

class Labelled(Pairs):
    read = 0
    classes = ("even", "odd", "other")
    def __init__(self, targets): self.targets = targets
    def __len__(self): return len(self.targets)
    def __getitem__(self, number):
        Labelled.read += 1
        return [1.0], self.targets[number]

class Stream(IterableDataset):
    def __iter__(self): yield 1, 2

class Long(IterableDataset):
    def __init__(self, says, gives): self.says, self.gives = says, gives
    def __len__(self): return self.says
    def __iter__(self):
        for number in range(self.gives): yield torch.tensor([float(number)]), number % 2

class Columns:
    '''What is used of datasets.Dataset: its names, and its columns as arrays once it is asked for numpy.'''
    def __init__(self, arrays=False, **columns): self.columns, self.arrays = columns, arrays
    @property
    def column_names(self): return list(self.columns)
    def with_format(self, kind):
        assert kind == "numpy"
        return Columns(True, **self.columns)
    def __len__(self): return len(next(iter(self.columns.values())))
    def __getitem__(self, which):
        assert self.arrays
        return {name: np.array(column)[which] for name, column in self.columns.items()}

def hub(**columns): return __import__("datasets").Dataset.from_dict(columns)
"""


Load = Callable[[str], Own]


@pytest.fixture
def own_of(own) -> Load:
    """The source whose function returns this."""
    return lambda value: Own(find_code(f"{own(f'{DATA_SETS}def data(): return {value}')}:data"))


def all_of(part: Examples | Reader) -> Examples:
    return part.read(np.arange(len(part)))


@pytest.mark.parametrize(
    "value",
    [
        "Pairs([([1.0, 2.0], 0), (torch.tensor([3.0, 4.0]), 1), (np.array([5.0, 6.0], 'f4'), 0)])",
        "Columns(label=[0, 1, 0], a=[1.0, 3.0, 5.0], b=[2, 4, 6])",
        "hub(pixels=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], label=[0, 1, 0])",
        "hub(a=[1, 3, 5], b=[2, 4, 6], other=[0, 1, 0]).with_format('torch')",
    ],
)
def test_columns_of_one_length_are_one_input_and_the_last_is_the_target_where_none_is_named(
    own_of: Load, value: str
) -> None:
    read = own_of(value).load().take(np.array([2, 0, 1]), "float32")
    assert (read.inputs.tolist(), read.targets.tolist()) == ([[5, 6], [1, 2], [3, 4]], [0, 0, 1])
    assert (read.inputs.dtype, read.targets.dtype) == (torch.float32, torch.int64)


def test_a_second_one_is_held_out(own_of: Load) -> None:
    dataset = own_of("TensorDataset(torch.ones(3, 2), torch.ones(3)), Columns(x=[[0.0, 1.0]], label=[0.5])").load()
    assert (dataset.train.inputs.shape, all_of(dataset.held_out).targets.tolist()) == ((3, 2), [0.5])


@pytest.mark.parametrize(
    ("value", "pixel"),
    [
        ("np.full((2, 2, 2), 51, np.uint8), [0, 1]", 0.2),
        ("np.full((2, 2), 51, np.uint8), [0, 1]", 51),
        ("Columns(image=np.full((2, 1, 2, 2), 51, np.uint8), label=[0, 1])", 0.2),
        ("Pairs([(np.full((1, 2, 2), 51, np.uint8), 0)] * 2)", 0.2),
    ],
)
def test_bytes_of_pictures_are_pixels_and_bytes_in_rows_are_numbers(
    own_of: Load, value: str, pixel: float
) -> None:
    read = own_of(value).load().take(np.arange(2), "float32")
    assert read.inputs.unique().tolist() == pytest.approx([pixel])


@pytest.mark.parametrize(
    "value",
    [
        "Pairs([{'ids': [1, 2], 'mask': 1, 'label': 0}, {'label': 1, 'ids': [3, 4], 'mask': 0}])",
        "Columns(ids=[[1, 2], [3, 4]], mask=[1, 0], label=[0, 1])",
        "hub(ids=[[1, 2], [3, 4]], mask=[1, 0], label=[0, 1])",
    ],
)
def test_examples_may_be_dicts(own_of: Load, value: str) -> None:
    read = all_of(own_of(value).load().train)
    assert {key: tensor.tolist() for key, tensor in read.inputs.items()} == {
        "ids": [[1, 2], [3, 4]],
        "mask": [1, 0],
    }
    assert (read.targets.dtype, read.targets.tolist()) == (torch.int64, [0, 1])


def test_known_targets_are_not_read_from_the_examples(own_of: Load) -> None:
    partitions = Partitions(own_of("Labelled([0, 1] * 50)"), Split(2, "shards:1"), held_out=0)
    assert sorted(part.unique().tolist() for part in partitions.train_targets(0)) == [[0], [1]]
    assert partitions.source.code.load().__globals__["Labelled"].read == 0


def test_classes_are_those_that_the_data_set_names(own_of: Load) -> None:
    dataset = own_of("Labelled([0, 1])").load()
    assert (dataset.classes, dataset.class_names) == (3, ("even", "odd", "other"))


def test_the_labels_of_a_column_are_known(own_of: Load) -> None:
    described = Partitions(own_of("hub(a=[[1.0], [2.0], [3.0]], label=[0, 4, 1])"), Split(1), held_out=0).describe(
        0
    )
    assert (described.labels, described.classes, described.inputs, described.examples) == (True, 5, (1,), 3)


def load(source: Own) -> Dataset:
    """Load a source, and read all that it has."""
    dataset = source.load()
    all_of(dataset.train)
    return dataset


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Stream()", r"gives a stream \(Stream\) of unknown length; give __len__"),
        ("Long(5, 4)", "says that it has 5 examples, and ends after 4"),
        ("Pairs([])", "a Pairs has no length, or no examples"),
        (
            "Pairs([(1, 2, 3)])",
            r"an example must be a pair of inputs and targets, or a dict with labels, not tuple",
        ),
        ("Pairs([([1.0], 0), ([1.0, 2.0], 1)])", "examples do not stack to one array: RuntimeError.* --collate"),
        ("hub(text=['a', 'b'], label=[0, 1])", "column 'text' holds no numbers of one shape"),
        ("hub(ids=[[1], [1, 2]], label=[0, 1])", "column 'ids' holds no numbers of one shape"),
        ("Columns(label=[0, 1])", r"needs a column of inputs and one of targets, and has \['label'\]"),
    ],
)
def test_other_data_sets_are_refused_in_one_line(own_of: Load, value: str, says: str) -> None:
    source = own_of(value)
    with pytest.raises(DataError, match=says) as caught:
        load(source)
    assert str(caught.value).startswith(source.code.reference)


def test_labels_that_only_reading_shows_are_named_as_unknown(own_of: Load) -> None:
    partitions = Partitions(own_of("Pairs([([1.0], 0), ([2.0], 1)])"), Split(1), held_out=0)
    with pytest.raises(DataError, match="shows its labels only as it is read; give the data set all of them as"):
        partitions.train_targets(0)


def test_a_streamed_data_set_of_hugging_face_is_told_its_length(own) -> None:
    code = """
import datasets, roundweave as rw
def streamed(count):
    columns = {"x": [[float(n)] for n in range(count)], "label": [n % 2 for n in range(count)]}
    return rw.Stream(datasets.Dataset.from_dict(columns).to_iterable_dataset(), examples=count)
def data(): return streamed(20), streamed(4)
"""
    partitions = Partitions(Own(find_code(f"{own(code)}:data")), Split(2, "contiguous"))
    trained = [partitions.load(0, place).train for place in range(2)]
    assert partitions.describe(0).inputs == (1,), "a single input column is the input"
    seen = [batch.inputs for part in trained for batch in part.slices(5)]
    assert torch.cat(seen).flatten().tolist() == list(range(20))
    assert len(partitions.load(0, 0).held_out) + len(partitions.load(0, 1).held_out) == 4
