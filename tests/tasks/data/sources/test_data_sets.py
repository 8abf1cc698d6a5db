"""Data sets of torch and Hugging Face: their examples are read where they are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from roundweave import Examples, Partitions, Reader, Split
from roundweave.storage.errors import DataError
from roundweave.tasks.data.distribution import train_targets
from roundweave.tasks.data.sources.own import Own
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
    def __init__(self, targets, change=int, **named):
        self.targets, self.change = targets, change
        vars(self).update(named)
    def __len__(self): return len(self.targets)
    def __getitem__(self, number):
        Labelled.read += 1
        return [1.0], self.change(self.targets[number])

class Stream(IterableDataset):
    def __iter__(self): yield 1, 2

class Long(IterableDataset):
    def __init__(self, says, gives): self.says, self.gives = says, gives
    def __len__(self): return self.says
    def __iter__(self):
        for number in range(self.gives): yield torch.tensor([float(number)]), number % 2

def names(*names): return __import__("datasets").ClassLabel(names=list(names))
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
    dataset = own_of("TensorDataset(torch.ones(3, 2), torch.ones(3)), hub(x=[[0.0, 1.0]], label=[0.5])").load()
    assert (dataset.train.inputs.shape, all_of(dataset.held_out).targets.tolist()) == ((3, 2), [0.5])


@pytest.mark.parametrize(
    ("value", "pixel"),
    [
        ("np.full((2, 2, 2), 51, np.uint8), [0, 1]", 0.2),
        ("np.full((2, 2), 51, np.uint8), [0, 1]", 51),
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
        "hub(ids=[[1, 2], [3, 4]], mask=[1, 0], label=[0, 1])",
    ],
)
def test_examples_may_be_dicts(own_of: Load, value: str) -> None:
    read = all_of(own_of(value).load().train)
    assert {key: each.tolist() for key, each in read.inputs.items()} == {"ids": [[1, 2], [3, 4]], "mask": [1, 0]}
    assert (read.targets.dtype, read.targets.tolist()) == (torch.int64, [0, 1])


def test_known_targets_are_not_read_from_the_examples(own_of: Load) -> None:
    partitions = Partitions(own_of("Labelled([0, 1] * 50)"), Split(2, "shards:1"), held_out=0)
    assert sorted(part.unique().tolist() for part in train_targets(partitions, 0)) == [[0], [1]]
    assert partitions.source.code.load().__globals__["Labelled"].read == 8, "they show that it gives what it says"


NAMED = ("even", "odd", "other")


@pytest.mark.parametrize(
    ("value", "names", "labels"),
    [
        ("Labelled([0, 1])", NAMED, [0, 1]),
        ("torch.utils.data.Subset(Labelled([0, 1, 1]), [0, 2])", NAMED, [0, 1]),
        ("torch.utils.data.ConcatDataset([Labelled([0, 1])] * 2)", NAMED, None),
        ("Labelled([0, 1], lambda label: 1 - label)", (), None),
        ("Labelled([0, 1], classes=3)", (), [0, 1]),
        ("Labelled([0, 1], classes=None)", (), [0, 1]),
        (
            "hub(b=[1.0, 2.0], a=[3.0, 4.0], label=[1, 0]).cast_column('label', names('no', 'yes'))",
            ("no", "yes"),
            [1, 0],
        ),
    ],
)
def test_classes_are_those_that_the_data_set_names(own_of: Load, value: str, names, labels) -> None:
    """But of one that gives other labels than it says that it has, neither is known."""
    dataset = own_of(value).load()
    assert (dataset.classes, dataset.class_names) == (len(names), names)
    assert (None if labels is None else dataset.train.targets.tolist()) == labels
    assert labels is not None or dataset.train.targets is None


def test_what_is_held_out_has_labels_and_columns_in_the_order_of_what_is_trained_on(own_of: Load) -> None:
    dataset = own_of("Labelled([0, 1, 2]), Labelled([0, 1], classes=('other', 'new'))").load()
    assert dataset.class_names == (*NAMED, "new")
    assert all_of(dataset.held_out).targets.tolist() == [2, 3]
    table = "__import__('pandas').DataFrame({'a': [1.0, 2.0], 'b': [3.0, 4.0]})"
    dataset = own_of(f"({table}, [0, 1]), ({table}[['b', 'a']], [0, 1])").load()
    assert (dataset.input_names, dataset.held_out.inputs.tolist()) == (("a", "b"), [[1, 3], [2, 4]])
    with pytest.raises(DataError, match="parts of a ConcatDataset name different classes"):
        own_of("torch.utils.data.ConcatDataset([Labelled([0]), Labelled([0], classes=('odd',))])").load()


def test_the_labels_of_a_column_are_known(own_of: Load) -> None:
    source = own_of("hub(a=[[1.0], [2.0], [3.0]], label=[0, 4, 1])")
    found = Partitions(source, Split(1), held_out=0).describe(0)
    assert (found.labels, found.classes, found.inputs, found.examples) == (True, 5, (1,), 3)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Stream()", r"gives a stream \(Stream\) of unknown length; give __len__"),
        ("Long(5, 4)", "says that it has 5 examples, and ends after 4"),
        ("Pairs([])", "a Pairs has no length, or no examples"),
        ("Pairs([(1, 2, 3)])", "an example must be a pair of inputs and targets, or a dict with labels"),
        ("Pairs([([1.0], 0), ([1.0, 2.0], 1)])", "examples do not stack to one array: RuntimeError.* --collate"),
        ("hub(text=['a', 'b'], label=[0, 1])", "column 'text' holds no numbers of one shape"),
        ("hub(ids=[[1], [1, 2]], label=[0, 1])", "column 'ids' holds no numbers of one shape"),
        ("hub(label=[0, 1])", r"needs a column of inputs and one of targets, and has \['label'\]"),
    ],
)
def test_other_data_sets_are_refused_in_one_line(own_of: Load, value: str, says: str) -> None:
    source = own_of(value)
    with pytest.raises(DataError, match=says) as caught:
        all_of(source.load().train)
    assert str(caught.value).startswith(source.code.reference)


def test_labels_that_only_reading_shows_are_named_as_unknown(own_of: Load) -> None:
    partitions = Partitions(own_of("Pairs([([1.0], 0), ([2.0], 1)])"), Split(1), held_out=0)
    with pytest.raises(DataError, match="shows its labels only when it is read; give the data set all labels as"):
        train_targets(partitions, 0)
