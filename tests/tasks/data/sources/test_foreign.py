"""Data sets of torch and of Hugging Face that the user's function returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from storage.errors import DataError
from tasks.data.sources.own import Own
from tasks.user_code import find_code

HEAD = """
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

class Pairs(Dataset):
    def __init__(self, pairs): self.pairs = pairs
    def __len__(self): return len(self.pairs)
    def __getitem__(self, number): return self.pairs[number]

class Stream(IterableDataset):
    def __iter__(self): yield 1, 2

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
"""


@pytest.fixture
def load(own):
    """The data set of a function that returns this."""
    return lambda value: Own(find_code(f"{own(f'{HEAD}def data(): return {value}')}:data")).load()


@pytest.mark.parametrize(
    "value",
    [
        "Pairs([([1.0, 2.0], 0), ([3.0, 4.0], 1), ([5.0, 6.0], 0)])",
        "Pairs([(torch.tensor([1.0, 2.0]), 0), (torch.tensor([3.0, 4.0]), 1), (np.array([5.0, 6.0], 'f4'), 0)])",
        "TensorDataset(torch.arange(1.0, 7).reshape(3, 2), torch.tensor([0, 1, 0]))",
        "Columns(pixels=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], label=[0, 1, 0])",
        "Columns(label=[0, 1, 0], a=[1.0, 3.0, 5.0], b=[2, 4, 6])",
        "Columns(a=[1, 3, 5], b=[2, 4, 6], other=[0, 1, 0])",
    ],
)
def test_examples_come_back(load, value: str) -> None:
    dataset = load(value)
    assert dataset.train.inputs.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (dataset.train.targets.dtype, dataset.train.targets.tolist()) == (torch.int64, [0, 1, 0])
    assert (dataset.held_out, dataset.scaling) == (None, None)


def test_a_second_one_is_held_out(load) -> None:
    dataset = load("TensorDataset(torch.ones(3, 2), torch.ones(3)), Columns(x=[[0.0, 1.0]], label=[0.5])")
    assert (dataset.train.inputs.shape, dataset.held_out.targets.tolist()) == ((3, 2), [0.5])


def test_bytes_of_pictures_are_pixels(load) -> None:
    dataset = load("Columns(image=np.full((2, 1, 2, 2), 51, np.uint8), label=[0, 1])")
    torch.testing.assert_close(dataset.take(np.arange(2), "float32").inputs, torch.full((2, 1, 2, 2), 0.2))


def test_a_data_set_of_ours_may_be_given_with_columns(own) -> None:
    source = (
        "import numpy as np, torch, roundweave as rw\ndef data():\n"
        "    return rw.Dataset(rw.Examples(torch.ones(2, 1), torch.zeros(2)), columns={'a': np.arange(2)})"
    )
    assert Own(find_code(f"{own(source)}:data")).load().columns["a"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Stream()", r"gives a stream \(Stream\); give a data set of a known length"),
        ("Pairs([])", r"each example of a Pairs must be a pair \(input, target\)"),
        ("Pairs([(1, 2, 3)])", r"each example of a Pairs must be a pair \(input, target\)"),
        ("Pairs([([1.0], 0), ([1.0, 2.0], 1)])", "examples do not stack to one array: RuntimeError"),
        ("Pairs([('a', 0), ('b', 1)])", "examples do not stack to one array: TypeError"),
        ("Columns(text=['a', 'b'], label=[0, 1])", "column 'text' holds no numbers of one shape"),
        ("Columns(label=[0, 1])", r"the data set has the columns \['label'\]; inputs and targets need one each"),
        ("Columns(a=[[1], [2]], b=[3, 4], label=[0, 1])", "of the columns a, b only one can be the inputs"),
        ("Columns(a=[[1.0], [float('nan')]], label=[0, 1])", "1 of 2 examples have NaN or infinite inputs"),
    ],
)
def test_anything_else_is_refused_in_one_line(load, value: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load(value)
    assert "\n" not in str(caught.value)


def test_a_real_data_set_of_hugging_face_comes_back(load) -> None:
    pytest.importorskip("datasets")
    dataset = load("__import__('datasets').Dataset.from_dict({'a': [[1.0], [2.0]], 'label': [0, 1]})")
    assert (dataset.train.inputs.tolist(), dataset.train.targets.tolist()) == ([[1], [2]], [0, 1])


@pytest.mark.parametrize("value", ["Pairs([{'ids': [1], 'label': 0}])", "Pairs([({'ids': [1]}, 0)])"])
def test_examples_that_are_dicts_say_what_to_give(load, value: str) -> None:
    with pytest.raises(DataError, match=r"batches of dicts are not read yet; give a tuple \(input, target\)"):
        load(value)
