"""The user's code is asked for its examples once more before a run begins: others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roundweave import Partitions, Split
from roundweave.storage.errors import DataError
from roundweave.tasks.data.reading import Loading
from roundweave.tasks.data.sources.own import READ_AGAIN, Own
from roundweave.tasks.data.sources.table import Each
from roundweave.tasks.own_code.code import find_code

KINDS = """
import random
import numpy as np
import roundweave as rw
import torch
from torch.utils.data import Dataset

class Drawn(Dataset):
    read = 0
    def __init__(self, noise): self.noise, self.generator = noise, torch.Generator().manual_seed(0)
    def __len__(self): return 100
    def __getitem__(self, number):
        Drawn.read += 1
        return number + self.noise(self.generator), 0

class Columns:
    column_names = ["x", "label"]
    def __init__(self, generator): self.generator = generator
    def __len__(self): return 100
    def with_format(self, kind): return self
    def __getitem__(self, rows): return {"x": self.generator.random(100)[rows], "label": np.zeros(100, int)[rows]}

ROWS = [(torch.tensor([float(number)]), number % 2) for number in range(100)]
class Streamed(torch.utils.data.IterableDataset):
    def __init__(self, shuffle): self.shuffle = shuffle
    def __len__(self): return 100
    def __iter__(self): return iter(self.shuffle([*ROWS]))
def loader(**how): return rw.Stream(torch.utils.data.DataLoader(ROWS, batch_size=None, shuffle=True, **how), 100)
def table(seed):
    rows = __import__("datasets").Dataset.from_dict({"x": [[0.0, n] for n in range(100)], "label": [0, 1] * 50})
    return rw.Stream(rows.to_iterable_dataset().shuffle(seed, buffer_size=50), 100)

def by_random(): return Streamed(lambda rows: random.sample(rows, 100))
def by_files(): return Streamed(lambda rows: rows[50:] + rows[:50] if random.random() < 0.5 else rows)
def by_loader(): return loader()
def by_seeds(): return Streamed(lambda rows: random.Random(0).sample(rows, 100))
def by_advancing(): return loader(generator=torch.Generator().manual_seed(0))
def by_table(): return table(None)
def by_seeded_table(): return table(0)
def before():
    rows = [*ROWS]
    random.shuffle(rows)
    return Streamed(lambda _: rows)

KEPT = Drawn(lambda generator: torch.rand(1, generator=generator))
LABELS = torch.zeros(20, dtype=torch.int64)
def arrays(): return np.random.rand(20, 2), LABELS
def last():
    inputs = torch.zeros(20, 1)
    inputs[-1] = torch.rand(1)
    return inputs, LABELS
def held_out(): return (torch.zeros(20, 2), LABELS), (torch.rand(20, 2), LABELS)
def kept(): return KEPT
def apart(partition, partitions): return torch.rand(20, 2), LABELS

def in_order(): return Drawn(lambda generator: torch.rand(1, generator=generator))
def columns(): return Columns(np.random.default_rng(0))

def seeded(): return torch.rand(20, 2, generator=torch.Generator().manual_seed(0)), LABELS
def by_torch(): return Drawn(lambda generator: torch.rand(1))
def by_numpy(): return Drawn(lambda generator: np.random.rand())
def sound(partition, partitions): return torch.full((20, 2), float("nan")), LABELS

def noisy(x): return x + torch.rand(x.shape)
OWN = torch.Generator().manual_seed(0)
def unseeded(x): return x + torch.rand(x.shape, generator=OWN)
"""
OTHERS = ["arrays", "last", "held_out", "kept", "apart", "before", "by_table"]


@pytest.fixture
def partitions(own):
    """Two partitions of what a function gives."""
    file = own(KINDS)
    return lambda name: Partitions(Own(find_code(f"{file}:{name}")), Split(2))


@pytest.mark.parametrize("name", OTHERS)
def test_examples_that_are_others_at_each_reading_are_refused(partitions, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name} gives other examples when it is read again, .* seed what"):
        partitions(name).check_again(0)


AGAIN = "batches differ when they are prepared again, so no round could be replayed"


@pytest.mark.parametrize("name", ["in_order", "columns"])
def test_a_data_set_whose_own_state_decides_its_examples_is_refused(partitions, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: {AGAIN}; have the transform draw from .* seeded"):
        partitions(name).check_again(0)


@pytest.mark.parametrize("name", ["by_random", "by_files", "by_loader", "by_advancing"])
def test_a_stream_that_each_map_would_read_in_another_order_is_refused(partitions, name: str) -> None:
    """Rows of a stream that are held out, or another partition's, would else be trained on."""
    with pytest.raises(DataError, match=r"when it is read again|another order of them, with each seed of torch"):
        partitions(name).check_again(0)


@pytest.mark.parametrize("name", ["seeded", "by_torch", "by_numpy", "sound", "by_seeds", "by_seeded_table"])
def test_examples_that_are_the_same_and_draws_that_are_seeded_pass(partitions, name: str) -> None:
    partitions(name).check_again(0)


def test_a_transform_is_tried_twice(partitions, own) -> None:
    file = own(KINDS, "transforms")
    found = partitions("seeded")
    replace(found, loading=Loading(find_code(f"{file}:noisy"))).check_again(0)
    with pytest.raises(DataError, match=AGAIN):
        replace(found, loading=Loading(find_code(f"{file}:unseeded"))).check_again(0)


def test_only_a_few_examples_of_a_data_set_are_read_before_a_run(partitions) -> None:
    found = partitions("by_torch")
    found.check_again(0)
    assert found.source.code.load().__globals__["Drawn"].read == 4 * READ_AGAIN


def test_sources_of_each_partition_are_read_again(partitions) -> None:
    drawn, same = partitions("arrays"), partitions("seeded")
    each = replace(drawn, source=Each((drawn.source, same.source)))
    with pytest.raises(DataError, match="gives other examples"):
        each.check_again(0)
    each.check_again(1)


def test_a_run_on_such_examples_is_refused_before_anything_is_stored(own, train, tmp_path) -> None:
    file = own(KINDS)
    with pytest.raises(DataError, match=AGAIN):
        train(data=f"{file}:seeded", transform=f"{file}:unseeded", model="linear", rounds=1)
    assert not list((tmp_path / "runs").glob("*.zarr"))
