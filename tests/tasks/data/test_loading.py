"""Batches of examples that are read where they are used, in this process or ahead by others."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import psutil
import pytest
import torch

from roundweave import LocalSteps, Partitions, Split, batches
from roundweave.storage.values.digests import tensor_digest
from roundweave.tasks.data.examples import Examples, tensors_of
from roundweave.tasks.data.loading import AnyExamples, LoadedExamples, forget_loaders
from roundweave.tasks.data.reading import Loading, ReadingFailed, forget_opened
from roundweave.tasks.data.sources.own import Own
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import find_code
from tests.patience import PATIENCE

CODE = """
import random
import numpy as np
import torch
import roundweave as rw
from torch.utils.data import Dataset, IterableDataset
class Numbered(Dataset):
    def __len__(self): return 40
    def __getitem__(self, number): return torch.tensor([float(number), number % 7]), number % 3
class Dicts(Numbered):
    def __getitem__(self, number): return {"a": [number], "b": [0.5, number], "labels": number % 3}
class Stream(IterableDataset):
    gives = 40
    def __len__(self): return 40
    def __iter__(self): return (Numbered()[number] for number in range(self.gives))
class Short(Stream): gives = 30
class Grouped(rw.Reader):
    def __len__(self): return 12
    def read(self, rows): return rw.Examples(torch.from_numpy(rows)[:, None], torch.from_numpy(rows) % 3)
    @property
    def groups(self): return np.arange(12) // 4
class Broken(Numbered):
    def __getitem__(self, number):
        if number == 17: raise ValueError("no\\nseventeen")
        return super().__getitem__(number)
class Ragged(Numbered):
    def __getitem__(self, number): return torch.ones(1 + number // 35), number % 3
class Gone(Numbered):
    def __getitem__(self, number): return Numbered()[number] if number != 17 else __import__("os")._exit(3)
LOADS = []
def data(): return Numbered()
def tensors():
    pairs = [Numbered()[number] for number in range(40)]
    return torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])
def dicts(): return Dicts()
def stream(): return Stream()
def short(): return Short()
def grouped(): return Grouped()
def broken(): return Broken()
def ragged(): return Ragged()
def gone(): return Gone()
def counted(partition, partitions):
    LOADS.append(partition)
    return torch.full((100, 1), float(partition)), torch.zeros(100, dtype=torch.int64)
def noisy(x): return x + torch.rand(2) + np.random.rand() + random.random()
def both(x, y): return -x, y + 10
def named(example): return {**example, "a": [2 * example["a"][0]]}
def negative(x): return -x
def summed(examples): return torch.stack([x.sum() for x, _ in examples])[:, None], [y for _, y in examples]
def unequal(examples): return torch.ones(len(examples) + 1, 2), torch.ones(len(examples))
"""

Make = Callable[..., AnyExamples]


@pytest.fixture
def make(own) -> Iterator[Make]:
    """The examples of a function of `CODE`, prepared by others of it; all 40 are one partition."""
    file = own(CODE)

    def made(name: str = "data", workers: int = 0, held_out: float = 0.0, **functions: str) -> AnyExamples:
        prepare = {key: find_code(f"{file}:{function}") for key, function in functions.items()}
        source = Own(find_code(f"{file}:{name}"))
        loading = Loading(**prepare, workers=workers)
        partitions = Partitions(source, Split(1, "contiguous"), held_out=held_out, loading=loading)
        return partitions.held_out_part(0, 0, 1) if held_out else partitions.load(0, 0)

    yield made
    forget_loaders()
    forget_opened()


def digests(drawn: Iterator[Examples]) -> list[list[str]]:
    return [[tensor_digest("", tensor) for tensor in tensors_of(batch)] for batch in drawn]


def numbers(drawn: Iterator[Examples]) -> list[list[float]]:
    """The first number of each example, in lists a batch."""
    return [batch.inputs[:, 0].tolist() for batch in drawn]


def flat(drawn: Iterator[Examples]) -> list[float]:
    """The first number of each example."""
    return [*chain.from_iterable(numbers(drawn))]


def failure(drawn: Iterator[Examples]) -> str:
    """Why batches cannot be read; the error itself is let go, and with it the processes of the loader."""
    try:
        list(drawn)
    except ReadingFailed as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("how", [{}, {"transform": "noisy"}, {"transform": "noisy", "collate": "summed"}])
def test_neither_processes_that_read_ahead_nor_draws_between_batches_change_batches(make: Make, how: dict) -> None:
    def drawn(workers: int, between: int) -> tuple[list[list[str]], list[float]]:
        seen, noise = [], []
        with pinned(5, threads=1):
            for batch in batches(make(workers=workers, **how), 8, 12, seed=3):
                seen += digests(iter([batch]))
                noise += torch.rand(between).tolist()
        return seen, noise

    with pinned(5, threads=1):
        stream = torch.rand(24).tolist()
    plain, _ = drawn(0, 0)
    for workers in (0, 2):
        seen, noise = drawn(workers, 2)
        assert (seen, noise) == (plain, stream)


def test_a_seed_decides_the_order_and_what_is_drawn(make: Make) -> None:
    noisy = make(transform="noisy")
    assert digests(noisy.batches(8, 5, 1)) == digests(noisy.batches(8, 5, 1))
    assert numbers(noisy.batches(8, 5, 1)) != numbers(noisy.batches(8, 5, 2))
    assert numbers(noisy.batches(None, 1, 1)) != numbers(noisy.batches(None, 1, 2)), "of the same order"
    (once,), (twice, again) = (numbers(noisy.batches(None, steps, 1)) for steps in (1, 2))
    assert once == twice != again


@pytest.mark.parametrize("name", ["data", "stream", "tensors"])
@pytest.mark.parametrize("size", [7, 50, None])
def test_each_example_comes_once_a_pass(make: Make, name: str, size: int | None) -> None:
    a_pass = -(-40 // min(size or 40, 40))
    drawn = numbers(make(name).batches(size, 2 * a_pass, seed=0))
    assert [len(batch) for batch in drawn] == 2 * [len(batch) for batch in numbers(make(name).slices(size or 40))]
    for each in (drawn[:a_pass], drawn[a_pass:]):
        assert sorted(chain.from_iterable(each)) == list(range(40))


@pytest.mark.parametrize("name", ["data", "stream", "tensors", "grouped"])
def test_a_pass_leaves_out_its_last_batch_if_that_is_asked_for(make: Make, name: str) -> None:
    """Of 40 examples in batches of 7 there are 5 whole ones a pass; of 12, one."""
    each = 1 if name == "grouped" else 5
    drawn = numbers(make(name).batches(7, 2 * each, 0, whole=7))
    assert [len(batch) for batch in drawn] == [7] * 2 * each
    for one in (drawn[:each], drawn[each:]):
        assert len({*chain.from_iterable(one)}) == 7 * each


def test_a_grouped_reader_gives_its_groups_one_after_the_other(make: Make) -> None:
    drawn = numbers(make("grouped").batches(4, 6, seed=1))
    for each in (drawn[:3], drawn[3:]):
        assert sorted(sorted(batch) for batch in each) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(("size", "workers"), [(8, 0), (9, 2), (None, 0)])
def test_a_data_set_gives_the_bits_of_the_same_tensors(make: Make, size: int | None, workers: int) -> None:
    read, held = make("data", workers), make("tensors")
    assert (type(read), type(held)) == (LoadedExamples, Examples)
    objective = Objective(ModelSpec("mlp", (2,), 3, "float32", 0, '{"hidden": 5}'), "cross_entropy")
    local = LocalSteps(local_steps=11, batch_size=size, lr=0.05)
    updates = []
    for examples in (read, held):
        with pinned(9, threads=1):
            updates.append(local(objective, objective.initial(), examples, {}, 9))
    bits = [tensor_digest("", update.direction["float32"]) for update in updates]
    assert bits[0] == bits[1]
    assert (updates[0].weight, updates[0].metrics) == (updates[1].weight, updates[1].metrics)


def test_a_transform_takes_the_input_or_the_pair_or_the_dict(make: Make) -> None:
    plain = next(make().slices(40))
    for name, more in (("negative", 0), ("both", 10)):
        found = next(make(transform=name).slices(40))
        assert torch.equal(found.inputs, -plain.inputs)
        assert torch.equal(found.targets, plain.targets + more)
    named = next(make("dicts", transform="named").slices(3))
    assert named.inputs["a"].tolist() == [[0], [2], [4]]
    assert named.inputs["b"].tolist() == [[0.5, 0], [0.5, 1], [0.5, 2]]


def test_tensors_in_memory_are_transformed_like_those_of_a_data_set(make: Make) -> None:
    held, read = (digests(make(name, transform="noisy").batches(8, 9, 4)) for name in ("tensors", "data"))
    assert held == read


def test_held_out_examples_have_a_transform_of_their_own(make: Make) -> None:
    plain = numbers(make(held_out=0.25).slices(10))
    assert numbers(make(held_out=0.25, transform="negative").slices(10)) == plain
    (other,) = numbers(make(held_out=0.25, held_out_transform="negative").slices(10))
    assert other == [-number for number in plain[0]]


def test_a_collate_makes_the_batch_of_what_the_transform_gives(make: Make) -> None:
    batch = make(transform="negative", collate="summed").first(3)
    assert (batch.inputs.tolist(), batch.targets.tolist()) == ([[0], [-2], [-4]], [0, 1, 2])


@pytest.mark.parametrize("size", [40, 8])
def test_a_stream_is_shuffled_and_a_part_of_a_pass_begins_as_the_seed_says(make: Make, size: int) -> None:
    stream = make("stream")
    a_pass, other, again = (flat(stream.batches(size, 40 // size, seed)) for seed in (1, 2, 1))
    assert again == a_pass != other
    assert a_pass != sorted(a_pass)
    assert sorted(a_pass) == list(range(40))
    firsts = {tuple(sorted(numbers(stream.batches(5, 1, seed))[0])) for seed in range(6)}
    assert len(firsts) > 1
    assert {*chain.from_iterable(firsts)} <= {*range(40)}


def test_a_partition_of_a_stream_has_the_stream_s_examples_at_its_rows(make: Make) -> None:
    stream = replace(make("stream"), rows=np.array([9, 3, 11]))
    assert numbers(stream.slices(2)) == [[3, 9], [11]]
    assert sorted(flat(stream.batches(2, 2, 0))) == [3, 9, 11]


def test_a_stream_that_is_shorter_than_it_said_is_refused(make: Make) -> None:
    reason = failure(make("short").batches(8, 5, 0))
    assert reason.endswith("mine.py:short says that it has 40 examples, and ends after 30")


@pytest.mark.parametrize(
    ("name", "functions", "says"),
    [
        ("broken", {}, r"mine.py:broken: ValueError: no \(line \d+ of .*mine.py\)$"),
        ("ragged", {}, "mine.py:ragged: examples do not stack to one array: RuntimeError: .*; pad them by"),
        ("data", {"collate": "unequal"}, r"arrays have shapes \(9, 2\), \(8,\); give all the same"),
        ("dicts", {"transform": "negative"}, "^transform .*mine.py:negative failed with TypeError: bad"),
        ("tensors", {"collate": "noisy"}, r"^collate .*mine.py:noisy failed with TypeError: .* \(line \d+ of"),
    ],
)
def test_what_cannot_be_read_says_the_same_in_each_process(make: Make, name: str, functions, says: str) -> None:
    one, other = (failure(make(name, workers, **functions).batches(8, 5, 0)) for workers in (0, 2))
    assert re.search(says, one)
    assert one == other and "\n" not in one


def test_a_loader_reads_on_after_an_error_and_beside_batches_that_nobody_took(make: Make) -> None:
    expected = digests(make().batches(8, 5, 1))
    for _ in range(2):
        assert "ValueError: no" in failure(make("broken", 2).batches(8, 5, 0))
        other, left = make().batches(8, 5, 7), make(workers=2).batches(8, 5, 7)
        assert digests(iter([next(left)])) == digests(iter([next(other)]))
        assert digests(make(workers=2).batches(8, 5, 1)) == expected
        assert digests(left) == digests(other)


def test_a_process_that_dies_as_it_reads_is_an_error_and_others_take_its_place(make: Make) -> None:
    reason = failure(make("gone", 2).batches(8, 5, 0))
    assert reason.startswith("a process that reads examples ahead ended: BrokenProcessPool: ")
    assert digests(make(workers=2).batches(8, 5, 1)) == digests(make().batches(8, 5, 1))


KILLED = """
import os, psutil, signal, sys
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.reading import Loading
from roundweave.tasks.data.sources.table import find_source
from roundweave.tasks.data.splits.split import Split
if __name__ == "__main__":
    source = find_source(sys.argv[1] + ":data")
    batches = Partitions(source, Split(1), loading=Loading(workers=2)).load(0, 0).batches(8, 4, 0)
    next(batches)
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_the_processes_of_a_loader_end_with_a_process_that_is_killed(own, tmp_path) -> None:
    script, file, said = own(KILLED, "killed"), own(CODE), tmp_path / "said"
    line = [sys.executable, script, file]
    with said.open("w") as out:  # not a pipe, which processes that are left would hold open
        subprocess.run(line, stdout=out, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False)
    started = [int(pid) for pid in said.read_text().split()]
    assert len(started) >= 3
    left, deadline = started, time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert not left


@pytest.mark.parametrize(
    ("room", "used", "loaded"), [(4, "012301230123", "0123"), (3, "01230123", "01230123"), (2, "01020", "012")]
)
@pytest.mark.usefixtures("make")
def test_what_was_used_longest_ago_is_let_go_where_not_all_fit(own, room: int, used: str, loaded: str) -> None:
    source = Own(find_code(f"{own(CODE)}:counted"))
    partitions = Partitions(source, Split(4), held_out=0, loading=Loading(memory=room * 1200))
    train = [partitions.load(0, partition) for partition in range(4)]
    loads = source.code.load().__globals__["LOADS"]
    loads.clear()
    forget_opened()
    assert [next(train[int(each)].batches(10, 1, 0)).inputs[0].item() for each in used] == [int(p) for p in used]
    assert loads == [int(partition) for partition in loaded]
