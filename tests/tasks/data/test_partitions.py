"""Which examples are held out, and who gets which of the others."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Dataset, Examples, Partitions
from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.data.description import Description, combine
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.data.sources.own import Items
from roundweave.tasks.data.sources.table import Each, find_source
from roundweave.tasks.data.splits.placement import Placement
from roundweave.tasks.data.splits.split import Split, hold_out


class Given:
    """Examples that are numbered, with labels from 0 to 2; held-out ones have numbers from 1000."""

    partitioned = False

    def __init__(self, count: int = 30, held_out: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.count, self.held_out, self.dtype = count, held_out, dtype

    def load(self, partition: int, partitions: int) -> Dataset:
        numbers = torch.arange(self.count).to(self.dtype).reshape(-1, 1)
        train = Examples(numbers, torch.arange(self.count) % 3)
        held = torch.arange(1000, 1000 + self.held_out).to(self.dtype).reshape(-1, 1)
        return Dataset(train, Examples(held, torch.arange(self.held_out) % 3) if self.held_out else None)


def giving(dataset: Dataset) -> Given:
    """A source of this."""
    source = Given()
    source.load = lambda *_: dataset
    return source


class Apart:
    """Loads each partition on its own."""

    partitioned = True

    def load(self, partition: int, partitions: int) -> Dataset:
        numbers = torch.arange(10 * partition, 10 * partition + 10).float().reshape(-1, 1)
        return Dataset(Examples(numbers, torch.arange(10) % 2))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0, 0.99), st.integers(0, 5))
@settings(max_examples=25)
def test_the_same_share_of_each_class_is_held_out(labels: list[int], share: float, seed: int) -> None:
    targets = np.array(labels)
    train, held = hold_out(np.arange(len(targets)), targets, share, seed)
    assert sorted([*train, *held]) == list(range(len(labels)))
    assert train.tolist() == sorted(train)
    if {round(labels.count(label) * share) / labels.count(label) for label in set(labels)} in ({0}, {1}):
        assert len(held) == min(round(len(labels) * share), len(labels) - 1)
        return
    for label in set(labels):
        there = labels.count(label)
        assert abs((targets[held] == label).sum() - there * share) <= 0.5


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 0), (0.1, 15), (0.9, 135), (0.999, 149)])
def test_of_classes_too_small_for_a_share_of_each_it_is_held_out_of_all(share: float, wanted: int) -> None:
    """Of 50 classes of 3 examples a tenth of each would be none, and nine tenths of each all."""
    train, held = hold_out(np.arange(150), np.arange(150) % 50, share, 0)
    assert (len(train), len(held)) == (150 - wanted, wanted)
    assert sorted([*train, *held]) == list(range(150))


def test_holding_out_by_hand() -> None:
    """A tenth of 30 zeros, 20 ones and 4 twos is 3, 2 and none."""
    targets = np.repeat([0, 1, 2], [30, 20, 4])
    (train, held), (_, other) = (hold_out(np.arange(54), targets, 0.1, seed) for seed in (0, 1))
    assert np.bincount(targets[held], minlength=3).tolist() == [3, 2, 0]
    assert (len(train), len(held)) == (49, 5)
    assert held.tolist() == hold_out(np.arange(54), targets, 0.1, 0)[1].tolist() != other.tolist()


@pytest.mark.parametrize("targets", [torch.linspace(0, 1, 40), torch.zeros(40, 2, dtype=torch.int64)])
def test_targets_that_are_no_labels_are_held_out_together(targets: torch.Tensor) -> None:
    source = giving(Dataset(Examples(torch.zeros(40, 1), targets)))
    partitions = Partitions(source, Split(1), held_out=0.25)
    assert (len(partitions.load(0, 0)), len(partitions.held_out_part(0, 0, 1))) == (30, 10)


def test_partitions_share_out_all_examples_once() -> None:
    partitions = Partitions(Given(), Split(4), held_out=0.2)
    parts = [partitions.load(0, partition) for partition in range(4)]
    train = torch.cat([part.inputs for part in parts]).flatten().tolist()
    held = torch.cat([partitions.held_out_part(p, p, 4).inputs for p in range(4)]).flatten().tolist()
    assert sorted(train + held) == list(range(30))
    found = partitions.describe(0)
    assert (found.examples, found.held_out, len(held)) == (24, 6, 6)
    assert all((part.inputs.flatten() % 3 == part.targets).all() for part in parts)


def test_a_new_split_deals_the_same_training_examples_anew() -> None:
    partitions = Partitions(Given(), Split(3, resplit_every=1), held_out=0.2)
    first, second = ([partitions.load(number, p).inputs.flatten().tolist() for p in range(3)] for number in (0, 1))
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second))


def test_the_assignment_is_what_is_loaded() -> None:
    partitions = Partitions(Given(), Split(4), held_out=0.2)
    owner = partitions.assignment(1)
    assert owner.dtype == np.int32
    for partition in range(4):
        rows = partitions.load(1, partition).inputs.flatten().int().tolist()
        assert sorted(rows) == np.flatnonzero(owner == partition).tolist()
    assert (owner == -1).sum() == 6


def test_a_source_that_loads_by_partition_is_not_dealt_out_again() -> None:
    partitions = Partitions(Apart(), Split(3), held_out=0.2)
    for partition in range(3):
        train, held_out = partitions.load(0, partition), partitions.held_out_part(partition, partition, 3)
        numbers = [*train.inputs.flatten().tolist(), *held_out.inputs.flatten().tolist()]
        assert sorted(numbers) == list(range(10 * partition, 10 * partition + 10))
        assert len(held_out) == 2


class Roles(Given):
    """Thirty examples: ten of role a, five of b, twelve of c, three of d."""

    def load(self, partition: int, partitions: int) -> Dataset:
        roles = np.repeat(["a", "b", "c", "d"], [10, 5, 12, 3])
        return replace(super().load(partition, partitions), columns={"role": roles})


def test_examples_that_are_left_out_are_neither_trained_on_nor_held_out() -> None:
    partitions = Partitions(Roles(), Split(2, "largest:role"), held_out=0.2)
    parts = [partitions.load(0, partition) for partition in range(2)]
    halves = [*parts, *(partitions.held_out_part(partition, partition, 2) for partition in range(2))]
    used = torch.cat([half.inputs for half in halves]).flatten().int().tolist()
    assert sorted(used) == [*range(10), *range(15, 27)]
    owner = partitions.assignment(0)
    wanted = [(slice(10), {0}), (slice(10, 15), set()), (slice(15, 27), {1}), (slice(27, 30), set())]
    assert [set(owner[rows]) - {-1} for rows, _ in wanted] == [mine for _, mine in wanted]
    assert partitions.describe(0).examples == sum(map(len, parts)) == (owner >= 0).sum()


def renamed() -> Given:
    dataset = Roles().load(0, 1)
    return giving(replace(dataset, columns={"role": dataset.columns["role"][::-1]}))


def test_other_examples_other_types_and_other_columns_are_other_data() -> None:
    sources = Given(), Given(31), Given(held_out=3), Given(dtype=torch.float64), Roles(), renamed()
    assert len({Partitions(source, Split(2)).describe(0).digest for source in sources}) == len(sources)


def test_a_source_that_loads_by_partition_takes_no_other_split() -> None:
    with pytest.raises(
        UsageError, match="split sizes:2 needs all examples, and the data give each partition its own"
    ):
        Partitions(Apart(), Split(3, "sizes:2"))


def sequences(targets: list[list[int]], classes: int = 0, first: int = 0) -> Given:
    """Three sequences of two places, and a vocabulary of seven."""
    labels = torch.tensor(targets)
    return giving(Dataset(Examples(torch.full_like(labels, first), labels), classes=classes))


def test_integers_at_each_place_are_labels() -> None:
    found = Partitions(sequences([[1, 4], [2, 0], [3, 3]]), Split(1)).describe(0)
    assert (found.labels, found.classes, found.targets) == (True, 5, (2,))
    assert Partitions(sequences([[1, 4]] * 3, classes=7), Split(1)).describe(0).classes == 7
    assert Partitions(sequences([[1, 4]] * 3, first=8), Split(1)).describe(0).classes == 9
    below = Partitions(sequences([[1, -4]] * 3), Split(1)).describe(0)
    assert (below.labels, below.classes) == (False, 0)


def test_a_class_that_is_only_held_out_counts() -> None:
    held = Examples(torch.zeros(2, 1), torch.tensor([0, 9]))
    source = giving(Dataset(Given().load(0, 1).train, held))
    assert Partitions(source, Split(2)).describe(0).classes == 10


def test_targets_in_bfloat16_can_be_split() -> None:
    source = giving(Dataset(Examples(torch.zeros(30, 1), torch.zeros(30).bfloat16())))
    assert Partitions(source, Split(2)).describe(0).held_out == 3


def test_descriptions_of_partitions_are_added_up() -> None:
    one = Description(10, 2, (4,), (), True, 3, "a")
    two = Description(20, 0, (4,), (), True, 5, "b")
    both = combine([one, two])
    assert (both.examples, both.held_out, both.classes) == (30, 2, 5)
    assert both.digest != combine([two, one]).digest
    with pytest.raises(DataError, match=r"partition 1 has inputs \(5,\) and targets \(\), partition 0 has \(4,\)"):
        combine([one, Description(20, 0, (5,), (), True, 5, "b")])
    with pytest.raises(DataError, match="partition 1 has targets that are quantities, partition 0 has labels"):
        combine([one, Description(20, 0, (4,), (), False, 0, "b")])


class Pictures(torch.utils.data.Dataset[Any]):
    """Two examples, as torchvision's folders of pictures give them: no tensors, until they are transformed."""

    def __init__(self, *examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, row: int) -> Any:
        return self.examples[row]


def test_examples_one_by_one_have_the_number_that_all_partitions_give_their_label() -> None:
    """They are as the data set gives them. One that is no pair does not say which is its label."""
    rows = np.array([1, 0])
    animals, agreed = ("dog", "mouse"), Meaning(("cat", "dog", "mouse"))
    pairs = Items(Pictures(("a picture", 0), ("another", 1)), "mine")
    renumbered = Dataset(pairs, class_names=animals).arranged(agreed)
    assert renumbered.train.items(rows) == [("another", 2), ("a picture", 1)]
    named = Items(Pictures({"x": 1, "label": 0}, {"x": 2, "label": 1}), "mine")
    with pytest.raises(DataError, match="no pairs of input and label"):
        Dataset(named, class_names=animals).arranged(agreed).train.items(rows)


def test_a_file_that_cannot_be_read_is_called_by_its_site(tmp_path: Path) -> None:
    """One path names another file at each site: it does not say whose file it is."""
    (tmp_path / "examples.csv").write_text("x,label\n1,2\n,3\n")
    data = f"csv:{tmp_path}/examples.csv"
    partitions = Partitions(Each((find_source(data),)), Split(1), placement=Placement("site", ("berlin",)))
    with pytest.raises(DataError, match=r"^partition berlin: .*1 values are missing"):
        partitions.described(0)


def test_files_of_partitions_must_mean_the_same_by_a_label_and_by_a_column(tmp_path: Path) -> None:
    """In one file cat is label 0 and dog is 1, in the other bird is 0: a network of both would mix them up."""
    tables = {"a": ("cat", "dog"), "b": ("bird", "dog"), "c": ("dog", "cat"), "d": ("cat", "dog", "fox")}
    for name, labels in tables.items():
        rows = "".join(f"1,2,{label}\n" * 2 for label in labels)
        (tmp_path / f"{name}.csv").write_text(f"x,y,label\n{rows}")
        (tmp_path / f"{name}-turned.csv").write_text(f"y,x,label\n{rows}")
    (tmp_path / "numbers.csv").write_text("x,y,label\n" + "1,2,0\n1,2,1\n" * 2)

    def described(*names: str) -> Description:
        partitions = Partitions(find_source(tuple(f"csv:{tmp_path}/{name}.csv" for name in names)), Split(2))
        return combine([partitions.describe(partition) for partition in range(2)])

    assert described("a", "c").class_names == ("cat", "dog")
    assert described("a", "d").class_names == ("cat", "dog", "fox")
    with pytest.raises(DataError, match="partition 1 has 'bird' as class 0, where partition 0 has 'cat'"):
        described("a", "b")
    with pytest.raises(DataError, match="partition 1 has 'y' as column 0, where partition 0 has 'x'"):
        described("a", "a-turned")
    with pytest.raises(DataError, match="partition 1 has labels that are numbers, partition 0 has names"):
        described("a", "numbers")


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    examples = Digits().load().train
    theirs = load_digits()
    assert np.array_equal(examples.inputs.numpy()[:, 0] * 16, theirs.images)
    assert np.array_equal(examples.targets.numpy(), theirs.target)


class Validated(Apart):
    """Apart, with held-out examples that each partition is given."""

    def __init__(self, differ: bool) -> None:
        self.differ = differ

    def load(self, partition: int, partitions: int) -> Dataset:
        held = torch.arange(7).float().reshape(-1, 1) + (partition if self.differ else 0)
        return replace(super().load(partition, partitions), held_out=Examples(held, torch.arange(7) % 2))


@pytest.mark.parametrize("differ", [False, True])
def test_held_out_examples_that_all_partitions_share_are_counted_once(differ: bool) -> None:
    partitions = Partitions(Validated(differ), Split(3))
    described = combine([partitions.describe(partition) for partition in range(3)])
    assert bool(described.shared) is not differ
    shared = replace(partitions, shared=bool(described.shared))
    scored = [len(shared.held_out_part(partition, partition, 3)) for partition in range(3)]
    assert (scored, described.held_out) == (([7, 7, 7], 21) if differ else ([7, 0, 0], 7))


def _table(path: Path, first: int) -> None:
    rows = "\n".join(f"{number},{number % 2}" for number in range(first, first + 40))
    path.write_text(f"a,label\n{rows}\n")


def test_a_process_that_holds_what_it_read_for_an_earlier_run_reads_it_again(tmp_path: Path) -> None:
    """As a worker of a cluster that stays, where another process has found other examples in the file since."""
    _table(tmp_path / "night.csv", 0)
    source = find_source(f"csv:{tmp_path}/night.csv")
    before = Partitions(source, Split(2, "contiguous"), held_out=0.0)
    assert before.load(0, 0).inputs[0].item() == 0
    _table(tmp_path / "night.csv", 100)
    digest = source.load(0, 1).digest
    assert replace(before, digests=(digest,)).load(0, 0).inputs[0].item() == 100
    with pytest.raises(DataError, match="have changed since the run began"):
        replace(before, digests=("0" * 64,)).load(0, 0)


def test_partitions_that_are_loaded_on_their_own_are_described_as_they_are_now(own, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.npy"
    read = f"x = np.load({str(numbers)!r})"
    file = own(f"import numpy as np\ndef part(p, n):\n    {read}\n    return x, np.arange(len(x)) % 2")
    partitions = Partitions(find_source(f"{file}:part"), Split(1))
    digests = []
    for count in (20, 30):
        np.save(numbers, np.ones((count, 2), np.float32))
        described = partitions.described(0)
        digests.append(described.digest)
        assert described.examples + described.held_out == count
    assert digests[0] != digests[1]
