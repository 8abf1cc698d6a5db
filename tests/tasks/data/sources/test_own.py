"""A user's function: its arrays, one or several by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from roundweave.storage.errors import DataError
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.data.splits.split import Split
from roundweave.tasks.own_code.code import find_code

HEAD = "import numpy as np, torch\n"


@pytest.fixture
def source(own):
    """An own source from the body of its function."""

    def make(body: str, signature: str = "") -> Own:
        return Own(find_code(f"{own(f'{HEAD}def data({signature}):{chr(10)}    {body}')}:data"))

    return make


@pytest.mark.parametrize(
    "body",
    [
        "return torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 2])",
        "return np.array([[1.0], [2.0], [3.0]], np.float32), np.array([0, 1, 2])",
        "return [torch.tensor([[1.0], [2.0], [3.0]]), [0, 1, 2]]",
        "return [[1.0], [2.0], [3.0]], [0, 1, 2]",
        "return torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True), (0, 1, 2)",
        "return torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])[:, :1], np.arange(6)[::2] // 2",
    ],
)
def test_inputs_and_targets_in_any_form(source, body: str) -> None:
    dataset = source(body).load()
    assert dataset.train.inputs.tolist() == [[1.0], [2.0], [3.0]]
    assert dataset.train.targets.tolist() == [0, 1, 2]
    assert dataset.train.inputs.is_contiguous()
    assert not dataset.train.inputs.requires_grad
    assert dataset.held_out is None


@pytest.mark.parametrize("form", ["(a, b), (c, d)", "[(a, b), (c, d)]", "([a, b], [c, d])"])
def test_held_out_examples_may_come_along(source, form: str) -> None:
    body = f"a, b, c, d = torch.ones(4, 2), torch.arange(4), np.zeros((3, 2)), [0, 0, 1]; return {form}"
    dataset = source(body).load()
    assert (len(dataset.train), len(dataset.held_out)) == (4, 3)
    assert dataset.held_out.targets.tolist() == [0, 0, 1]


def test_two_examples_given_as_lists_are_two_examples(source) -> None:
    dataset = source("return [[1.0, 2.0], [3.0, 4.0]], [0, 1]").load()
    assert dataset.train.inputs.tolist() == [[1, 2], [3, 4]]


def test_a_function_of_two_parameters_gives_one_partition(source) -> None:
    whole = source("return torch.ones(2, 1), torch.zeros(2)")
    apart = source("return torch.full((2, 1), 10. * partition + of), torch.zeros(2)", "partition, of")
    assert (whole.partitioned, apart.partitioned) == (False, True)
    assert apart.load(3, 5).train.inputs.tolist() == [[35], [35]]


@pytest.mark.parametrize("signature", ["a=1, b=2", "*rest", "**more", "a=1, *rest, b=2"])
def test_parameters_with_defaults_are_left_alone(source, signature: str) -> None:
    assert not source("return torch.ones(2, 1), torch.zeros(2)", signature).partitioned


def test_a_partition_is_not_searched_for_nan_since_its_update_will_be_refused(source) -> None:
    assert torch.isnan(
        source("return torch.full((2, 1), float('nan')), torch.zeros(2)", "i, n").load(0, 2).train.inputs
    ).all()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 5", r"must return \(inputs, targets\)"),
        ("return torch.ones(2, 1)", r"must return \(inputs, targets\)"),
        ("return torch.ones(2, 1), torch.ones(2), 3", r"must return \(inputs, targets\)"),
        ("return {'labels': [0, 1]}", "a batch of labels needs inputs, and targets called labels"),
        ("return {'ids': 1, 'labels': 2}", r"arrays of shapes \(\), \(\); give each as many examples"),
        ("return {'a': torch.ones(2), 'b': torch.ones(3), 'labels': [0, 1]}", r"shapes \(2,\), \(3,\), \(2,\)"),
        ("return {'ids': torch.tensor([[1.0], [float('nan')]])}, torch.ones(2)", "infinite inputs ids"),
        ("return [{'ids': 1}, {'ids': 2}], [0, 1]", "gives a list that is no array"),
        ("return np.array([{'ids': 1}, {'ids': 2}]), [0, 1]", "gives a ndarray that is no array"),
        ("return [{'ids': 1, 'label': 0}] * 3", r"must return \(inputs, targets\)"),
        ("return (torch.ones(2), torch.ones(2)), torch.ones(2)", r"must return \(inputs, targets\)"),
        ("return torch.ones(2, 1), torch.ones(3)", r"arrays of shapes \(2, 1\), \(3,\)"),
        ("return (torch.ones(2), torch.ones(2)), (torch.ones(3), torch.ones(2))", r"of shapes \(3,\), \(2,\)"),
        ("return torch.ones(2, 1), 'ab'", "gives a str that is no array"),
        ("return torch.ones(2, 1), [None, 1]", "gives a list that is no array"),
        ("return torch.ones(2, 1), 7", r"arrays of shapes \(2, 1\), \(\); give each as many"),
        ("return [[1.0, 2.0], [3.0], [4.0]], [0, 1, 2]", "gives a list that is no array"),
        ("return np.ones((2, 1), '>f4'), np.zeros(2)", "gives a ndarray that is no array"),
        ("return 1 / 0", "failed with ZeroDivisionError: division by zero"),
        ("raise ValueError('one\\ntwo')", "failed with ValueError: one"),
        ("return open('/nowhere/x.npz')", "failed with FileNotFoundError"),
    ],
)
def test_anything_else_is_refused_in_one_line(source, body: str, reason: str) -> None:
    own = source(body)
    with pytest.raises(DataError, match=reason) as caught:
        own.load()
    assert str(caught.value).startswith(own.code.reference)


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_named_with_its_first_example(source, bad: str) -> None:
    places = "x[4, 1, 0] = x[7, 0, 0] = x[7, 1, 1]"
    body = f"x = torch.zeros(9, 2, 2); {places} = float('{bad}'); return x, torch.zeros(9)"
    with pytest.raises(DataError, match="2 of 9 examples have NaN or infinite inputs, the first is number 4"):
        source(body).load()
    body = f"y = np.zeros(9); y[3] = float('{bad}'); return np.zeros((9, 1)), y"
    with pytest.raises(DataError, match="1 of 9 examples have NaN or infinite targets, the first is number 3"):
        source(body).load()
    body = f"a = np.zeros((2, 1)), [0, 0]; return a, (torch.tensor([[0.0], [float('{bad}')]]), [0, 0])"
    with pytest.raises(DataError, match="1 of 2 examples have NaN or infinite inputs, the first is number 1"):
        source(body).load()


@pytest.mark.parametrize("form", ["{'a': A, 'b': B, 'labels': Y}", "({'a': A, 'b': B}, Y)"])
def test_inputs_may_be_several_by_name(source, form: str) -> None:
    body = (
        f"A, B, Y = [[1, 2], [3, 4]], np.array([0.5, 1.5]), torch.tensor([1, 0], dtype=torch.int32); return {form}"
    )
    train = source(body).load().train
    assert {name: tensor.tolist() for name, tensor in train.inputs.items()} == {
        "a": [[1, 2], [3, 4]],
        "b": [0.5, 1.5],
    }
    assert (train.targets.dtype, train.targets.tolist()) == (torch.int64, [1, 0])


def test_targets_may_be_several_by_name(source) -> None:
    train = source("return torch.ones(2, 1), {'place': [[0.5], [1.5]], 'kind': [-1, 1]}").load().train
    assert {name: tensor.tolist() for name, tensor in train.targets.items()} == {
        "place": [[0.5], [1.5]],
        "kind": [-1, 1],
    }


def test_a_negative_label_is_named_with_its_example(source) -> None:
    with pytest.raises(DataError, match="label -2 of example 1 is out of range; labels start at 0"):
        source("return torch.zeros(4, 1), torch.tensor([0, -2, 1, -2])").load()


def test_negative_targets_that_are_no_labels_are_fine(source) -> None:
    assert source("return torch.zeros(2, 1), torch.tensor([[-1], [-2]])").load().train.targets.min() == -2
    assert source("return torch.zeros(2, 1), np.array([-1.5, 2])").load().train.targets.min() == -1.5


def test_rows_are_scaled_and_cast_when_they_are_taken() -> None:
    train = Examples(torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.tensor([5, 6, 7]))
    dataset = Dataset(train, scaling=(255.0, 0.2, 0.5))
    taken = dataset.take(np.array([2, 1]), "float64")
    assert taken.inputs.dtype == torch.float64
    torch.testing.assert_close(taken.inputs.flatten().tolist(), [1.6, 0.0], rtol=0, atol=1e-7)
    assert taken.targets.tolist() == [7, 6]


def test_held_out_rows_are_taken_from_the_held_out_examples() -> None:
    dataset = Dataset(Examples(torch.zeros(2, 1), torch.zeros(2)), Examples(torch.ones(2, 1), torch.ones(2)))
    assert dataset.take(np.array([0]), "float32", held_out=True).inputs.item() == 1
    assert dataset.take(np.array([0]), "float32").inputs.item() == 0
    assert math.isclose(dataset.take(np.array([0]), "bfloat16", held_out=True).targets.item(), 1)


def test_bytes_of_pictures_are_scaled_as_those_of_a_file_are(source) -> None:
    pictures = source("return np.full((4, 2, 2), 51, np.uint8), np.arange(4)").load()
    assert pictures.take(np.array([0]), "float32").inputs.unique().tolist() == pytest.approx([0.2])
    rows = source("return np.full((4, 2), 51, np.uint8), np.arange(4)").load()
    assert rows.take(np.array([0]), "float32").inputs.unique().tolist() == [51]


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64", "int32", "uint8"])
def test_labels_of_any_integers_are_labels(source, kind: str) -> None:
    targets = source(f"return np.zeros((4, 2)), np.array([0, 1, 2, 1], np.{kind})").load().train.targets
    assert (targets.dtype, targets.tolist()) == (torch.int64, [0, 1, 2, 1])


@pytest.mark.parametrize("how", ["to_sparse()", "to('meta')"])
def test_tensors_that_are_not_dense_are_refused(source, how: str) -> None:
    with pytest.raises(DataError, match="sparse, nested or without values; make it a dense one"):
        source(f"return torch.eye(4).{how}, torch.arange(4)").load()


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        ("torch.zeros(3, 5), torch.arange(3)", r"inputs held out are numbers of shape \(5,\), .* of shape \(2,\)"),
        ("torch.zeros(3, 2).long(), torch.arange(3)", "inputs held out are integers of shape"),
        ("torch.zeros(3, 2), torch.zeros(3)", r"targets held out are numbers of .* integers of shape \(\)"),
        ("{'a': torch.zeros(3, 2)}, torch.arange(3)", r"held out are missing, and .* numbers of shape \(2,\)"),
    ],
)
def test_held_out_examples_of_another_kind_are_refused(source, held_out: str, says: str) -> None:
    own = source(f"return (torch.zeros(4, 2), torch.arange(4)), ({held_out})")
    with pytest.raises(DataError, match=says) as refused:
        Partitions(own, Split(2)).describe(0)
    assert str(refused.value).startswith(f"{own.code.reference}: ")


def test_a_data_set_of_ours_may_be_given_with_columns(own) -> None:
    source = (
        "import numpy as np, torch, roundweave as rw\ndef data():\n"
        "    return rw.Dataset(rw.Examples(torch.ones(2, 1), torch.zeros(2)), columns={'a': np.arange(2)})"
    )
    assert Own(find_code(f"{own(source)}:data")).load().columns["a"].tolist() == [0, 1]
