"""A user's function: its arrays, one or several by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from roundweave import Dataset, Examples, Partitions, Split
from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.own_code.code import find_code

HEAD = "import numpy as np, torch\n"


@pytest.fixture
def source(own):
    """An own source from the body of its function."""

    def make(body: str, signature: str = "") -> Own:
        return Own(find_code(f"{own(f'{HEAD}def data({signature}):{chr(10)}    {body}')}:data"))

    return make


@pytest.mark.parametrize("form", ["(a, b), (c, d)", "[(a, b), (c, d)]", "([a, b], [c, d])"])
def test_held_out_examples_may_come_along(source, form: str) -> None:
    body = f"a, b, c, d = torch.ones(4, 2), torch.arange(4), np.zeros((3, 2)), [0, 0, 1]; return {form}"
    dataset = source(body).load()
    assert (len(dataset.train), len(dataset.held_out)) == (4, 3)
    assert dataset.held_out.targets.tolist() == [0, 0, 1]


def test_a_function_of_two_parameters_gives_one_partition(source) -> None:
    whole = source("return torch.ones(2, 1), torch.zeros(2)")
    apart = source("return torch.full((2, 1), 10. * partition + of), torch.zeros(2)", "partition, of")
    assert (whole.partitioned, apart.partitioned) == (False, True)
    assert apart.load(3, 5).train.inputs.tolist() == [[35], [35]]


@pytest.mark.parametrize("signature", ["a=1, b=2", "*rest", "**more", "a=1, *rest, b=2"])
def test_parameters_with_defaults_are_left_alone(source, signature: str) -> None:
    assert not source("return torch.ones(2, 1), torch.zeros(2)", signature).partitioned


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 5", r"must return \(inputs, targets\)"),
        ("return torch.ones(2, 1), torch.ones(2), 3", r"must return \(inputs, targets\)"),
        ("return {'ids': torch.tensor([[1.0], [float('nan')]])}, torch.ones(2)", "infinite inputs ids"),
        ("return [{'ids': 1}, {'ids': 2}], [0, 1]", "gives a list that is no array"),
        ("return [{'ids': 1, 'label': 0}] * 3", r"must return \(inputs, targets\)"),
        ("return (torch.ones(2), torch.ones(2)), (torch.ones(3), torch.ones(2))", r"have shapes \(3,\), \(2,\)"),
        ("return torch.ones(2, 1), 'ab'", "gives a str that is no array"),
        ("return torch.ones(2, 1), 7", r"arrays have shapes \(2, 1\), \(\); give all the same"),
        ("return np.ones((2, 1), '>f4'), np.zeros(2)", "gives a ndarray that is no array"),
        ("return 1 / 0", "failed with ZeroDivisionError: division by zero"),
        ("raise ValueError('one\\ntwo')", "failed with ValueError: one"),
        ("return np.zeros((3, 1)), [0, 1, float('nan')]", "have NaN or infinite targets, .* number 2"),
        ("return (np.ones((2, 1)), [0, 0]), ([[0.0], [-np.inf]], [0, 0])", "inputs, .* number 1"),
        ("return torch.eye(4).to_sparse(), torch.arange(4)", "sparse, nested or without values"),
        ("return torch.eye(4).to('meta'), torch.arange(4)", "sparse, nested or without values"),
    ],
)
def test_anything_else_is_refused_in_one_line(source, body: str, reason: str) -> None:
    own = source(body)
    with pytest.raises(DataError, match=reason) as caught:
        own.load()
    assert str(caught.value).startswith(own.code.reference)


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
