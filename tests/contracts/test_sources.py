"""A source gives any rows of its data in any order, to the last digit, or refuses them in one line.

A source of another kind of files gets a writer in `tests/tasks/data/sources/written.py`, and another value that a
user's function may return gets a row in `OWN`.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from roundweave import Dataset, Examples, Split
from roundweave.storage.errors import DataError
from roundweave.tasks.data.partitions import Partitions, forget_examples
from roundweave.tasks.data.sources.table import SOURCES, find_source
from tests.tasks.data.sources.written import FILES

Write = Callable[[Path, np.ndarray, np.ndarray], str]

INPUTS = np.stack([1_600_000_000 + np.arange(91), np.arange(91) / 10], axis=1)
"""float32 has a step of 128 at 1.6e9: two numbers for the 91 seconds. 0.1 is another number in it."""
LABELS = np.arange(91) * 5 % 3


HEAD = """
from pathlib import Path
import numpy as np
import roundweave as rw
import torch
FILE = Path(__file__).with_name("own.npz")
class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]
def data():
    arrays = np.load(FILE)
    x, y = arrays["x"], arrays["y"]
"""
READ = {
    "one by one": "Pairs(x, y)",
    "by columns": "__import__('datasets').Dataset.from_dict({'x': x.tolist(), 'label': y.tolist()})",
    "as a stream": "rw.Stream([{'x': each, 'label': label} for each, label in zip(x, y)], len(x))",
}
"""Of these the numbers are known once they are read."""
OWN = {
    "arrays": "x, y",
    "strided arrays": "np.repeat(x, 2, 1)[:, ::2], np.repeat(y, 2)[::2].astype('uint16')",
    "tensors": "torch.tensor(x, requires_grad=True), torch.from_numpy(y).int()",
    "lists": "[x.tolist(), y.tolist()]",
    "a data set of tensors": "torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))",
    "a data set of ours": "rw.Dataset(rw.Examples(torch.from_numpy(x), torch.from_numpy(y)))",
} | READ


def own(gives: str) -> Write:
    """A user's function that gives this of arrays x and y."""

    def write(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> str:
        np.savez(folder / "own.npz", x=inputs, y=labels)
        (folder / "mine.py").write_text(f"{HEAD}    return {gives}\n")
        return f"{folder}/mine.py:data"

    return write


KNOWN = FILES | {name: own(gives) for name, gives in OWN.items() if name not in READ}
ALL: dict[str, Write] = KNOWN | {name: own(gives) for name, gives in READ.items()}
BAD_LABELS = LABELS - 3 * (np.arange(91) == 5)
WITHOUT_END = INPUTS + np.where(np.arange(182).reshape(91, 2) == 141, np.inf, 0)


@pytest.fixture(autouse=True)
def _opened_anew() -> None:
    forget_examples()


def loaded(data: str) -> Dataset:
    return find_source(data).load(0, 1)


@pytest.mark.parametrize("name", SOURCES)
def test_each_source_of_the_table_is_a_value_and_says_what_it_is(name: str) -> None:
    entry = SOURCES[name]
    text = f"{name}:somewhere" if entry.argument else name
    source = find_source(text)
    assert source == find_source(text) == pickle.loads(pickle.dumps(source))
    assert hash(source) == hash(find_source(text))
    assert source.partitioned is False
    assert entry.about
    assert "\n" not in entry.about


@pytest.mark.parametrize("name", ALL)
class TestSource:
    def test_any_rows_come_back_in_their_order_to_the_last_digit(self, name: str, tmp_path: Path) -> None:
        source = pickle.loads(pickle.dumps(find_source(ALL[name](tmp_path, INPUTS, LABELS))))
        dataset = source.load(0, 1)
        assert (len(dataset.train), dataset.held_out, source.partitioned) == (91, None, False)
        if isinstance(dataset.train, Examples):
            assert dataset.train.inputs.is_contiguous()
            assert not dataset.train.inputs.requires_grad
        for rows in ([90], [3, 0, 90, 3, 50], [*np.random.default_rng(1).permutation(91)]):
            found = dataset.take(np.array(rows), "float64")
            assert found.inputs.dtype == torch.float64
            assert np.array_equal(found.inputs.numpy(), INPUTS[rows])
            assert (found.targets.dtype, found.targets.tolist()) == (torch.int64, LABELS[rows].tolist())

    def test_other_numbers_are_other_data(self, name: str, tmp_path: Path) -> None:
        def digest(inputs: np.ndarray, labels: np.ndarray) -> str:
            forget_examples()
            return loaded(ALL[name](tmp_path, inputs, labels)).digest

        other = INPUTS + (np.arange(182).reshape(91, 2) == 0)
        first = digest(INPUTS, LABELS)
        assert first == digest(INPUTS, LABELS)
        assert len({first, digest(other, LABELS), digest(INPUTS, LABELS[::-1].copy())}) == 3


@pytest.mark.parametrize("name", [name for name in ALL if name != "as a stream"])
def test_a_number_that_is_none_is_named_with_its_example(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of \d+ examples have NaN or infinite inputs, the first is number 70"):
        loaded(ALL[name](tmp_path, WITHOUT_END, LABELS)).take(np.arange(91), "float64")


@pytest.mark.parametrize("name", KNOWN)
class TestKnownNumbers:
    def test_labels_are_counted_and_those_below_0_refused(self, name: str, tmp_path: Path) -> None:
        write = KNOWN[name]
        partitions = Partitions(find_source(write(tmp_path, INPUTS, LABELS)), Split(2), "float64", held_out=0)
        found = partitions.describe(0)
        assert (found.labels, found.classes, found.examples) == (True, 3, 91)
        assert (found.inputs, found.targets) == ((2,), ())
        if name != "strided arrays":  # whose labels have no sign
            with pytest.raises(DataError, match="label -2 of example 5 is out of range"):
                loaded(write(tmp_path, INPUTS, BAD_LABELS))

    def test_numbers_that_float32_cannot_tell_apart_are_refused_in_it(self, name: str, tmp_path: Path) -> None:
        source = find_source(KNOWN[name](tmp_path, INPUTS, LABELS))
        says = r"91 different inputs in column (a|0) are 2 in float32; give --dtype float64, or subtract"
        with pytest.raises(DataError, match=says):
            Partitions(source, Split(2)).describe(0)
        assert Partitions(source, Split(2), "float64").describe(0).examples == 82


@pytest.mark.parametrize("name", FILES)
class TestFile:
    def test_one_that_is_not_there_is_named(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        data = FILES[name](tmp_path / "data", INPUTS, LABELS)
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(DataError, match=rf"there is no file .*{tmp_path}/data") as refused:
            loaded(data)
        assert "\n" not in str(refused.value)

    def test_one_that_is_cut_off_is_named(self, name: str, tmp_path: Path) -> None:
        data = FILES[name](tmp_path, INPUTS, LABELS)
        file = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path.suffix != ".json")
        content = file.read_bytes()
        for left in (0, 1, 50)[name == "zarr_shards" :]:  # zarr takes an empty shard for one of the fill value
            file.write_bytes(content[:left])
            with pytest.raises(DataError, match=str(tmp_path)) as refused:
                loaded(data).take(np.arange(91), "float64")
            assert "\n" not in str(refused.value)
