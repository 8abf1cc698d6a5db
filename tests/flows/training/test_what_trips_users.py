"""What users give that trips a run: it works, or one line says what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import DataError, ModelError, PlaceError, RoundFailed, StoreError
from tests.hostile.stores import Store

SOURCE = """
import asyncio
import numpy as np
import roundweave as rw
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

X = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")
WORDS = np.random.default_rng(1).integers(0, 50, (80, 6))

class Pairs(Dataset):
    def __init__(self, known): self.__dict__.update(targets=Y.tolist()) if known else None
    def __len__(self): return 80
    def __getitem__(self, row): return X[row], Y[row]

def hub(x=X, label=Y):
    return __import__("datasets").Dataset.from_dict({"x": list(map(list, x)), "label": list(label)})
def raised(error):
    raise error

class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)
    def forward(self, words): return self.last(self.embedding(words).mean(1))
def embedded(): return Embedded()

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.register_buffer("mask", torch.full((2,), float("-inf")))
    def forward(self, inputs): return self.last(inputs) + 0 * self.mask.nan_to_num(neginf=0.0)
def masked(): return Masked()
def normed(): return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

def data(): return """


@pytest.fixture
def given(own, train):
    """Train on what a function gives."""

    def run(value: str, model: str = "logistic", **fields: object) -> rw.Run:
        file = own(SOURCE + value)
        model = model if model == "logistic" else f"{file}:{model}"
        return train(**{"data": f"{file}:data", "model": model, "partitions": 2, "rounds": 1} | fields)

    return run


@pytest.mark.parametrize(
    "value",
    [
        "rw.Dataset(hub(), columns={'site': np.arange(80) % 2})",
        "rw.Dataset((X, Y))",
        "rw.Dataset(TensorDataset(torch.tensor(X), torch.tensor(Y)), hub())",
        "Subset(Subset(Pairs(True), range(70)), range(60))",
    ],
)
def test_data_sets_within_others_are_read(given, value: str) -> None:
    split = {"split": "by:site"} if "site" in value else {"split": "shards:2"} if "Subset" in value else {}
    assert given(value, **split).round(1).score is not None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("raised(GeneratorExit())", "failed with GeneratorExit"),
        ("raised(asyncio.CancelledError())", "failed with CancelledError"),
        ("{'train': hub(), 'test': hub()}", "returns data sets by name; return one, or a pair"),
        ("Pairs(False)", "labels are unknown before examples are read; give the data set all labels as targets"),
        ("hub(label=[None, *Y[1:]])", "have NaN or infinite targets, the first is number 0"),
        ("hub(x=[[None, 1.0, 2.0], *X[1:]])", "have NaN or infinite inputs, the first is number 0"),
        ("(X, Y - 1)", "label -1 of example . is out of range; labels start at 0, and quantities are floats"),
        ("(X, Y == 1)", "give targets that are true or false as whole numbers, or as floats"),
        ("(X, Y[:, None])", "give labels without their second axis"),
        ("((10 * X).astype('int64'), Y)", "give the inputs as floats"),
        ("([None, *X[1:]], Y)", "that is no array of numbers, or lacks some"),
    ],
)
def test_others_are_refused_with_what_to_do(given, value: str, says: str) -> None:
    with pytest.raises((DataError, ModelError), match=says):
        given(value)


def test_cross_entropy_of_a_single_share_is_refused_as_it_is_always_0(given) -> None:
    with pytest.raises(ModelError, match="cross_entropy of a single share is always 0"):
        given("(X, X[:, :1])", loss="cross_entropy")


def test_a_text_that_pandas_takes_for_a_missing_value_is_told(train, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n1,NA\n2,US\n")
    with pytest.raises(DataError, match="texts such as NA, None and null"):
        train(data=f"csv:{tmp_path}/a.csv", model="logistic")


@pytest.mark.parametrize("algorithm", ["sync_sgd", "fed_prox", "scaffold", "downpour"])
def test_sparse_embeddings_are_trained(given, algorithm: str) -> None:
    assert given("(WORDS, Y)", model="embedded", algorithm=algorithm).round(1).refused == {}


def test_what_takes_no_sparse_gradients_says_so(given) -> None:
    with pytest.raises(RoundFailed, match="give its Embedding sparse=False"):
        given("(WORDS, Y)", model="embedded", algorithm={"name": "fed_avg", "optimizer": "Adam", "lr": 0.01})


@pytest.mark.parametrize(
    "algorithm", [{"name": "fed_avg"}, {"name": "downpour", "push_every": 8, "fetch_every": 8}]
)
def test_a_last_batch_of_one_is_dropped_for_a_norm_of_batches(given, algorithm: dict) -> None:
    """Each of 2 partitions has 36 examples, in batches of 5."""
    with pytest.raises(RoundFailed, match="a batch has one example: give drop_last, or another batch_size"):
        given("(X, Y)", algorithm={**algorithm, "batch_size": 5}, model="normed", rounds=3)
    run = given("(X, Y)", algorithm={**algorithm, "batch_size": 5, "drop_last": True}, model="normed", rounds=3)
    assert run.replay(1).identical


def test_a_buffer_that_is_infinite_is_begun_with_and_forked(given, train, tmp_path: Path) -> None:
    run = given("(X, Y)", model="masked", name="first")
    file = tmp_path / "weights.safetensors"
    write_checkpoint(file, run.round(1).tensors)
    for start in (f"{run.address}@1", str(file)):
        again = given("(X, Y)", model="masked", start_from=start)
        assert again.round(0).tensors["mask"].isinf().all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_run_begins_from_numbers_of_eight_bits(given, tmp_path: Path, dtype: str) -> None:
    weights = torch.tensor([[1.0, -2.0, 0.5], [0.0, 4.0, -0.25]])  # exact in both types
    tensors = {"1.weight": weights.to(getattr(torch, dtype)), "1.bias": torch.zeros(2)}
    torch.save(tensors, tmp_path / "eight.pt")
    begun = given("(X, Y)", start_from=str(tmp_path / "eight.pt")).round(0)
    assert torch.equal(begun.params["1.weight"], weights)


def test_a_run_begins_from_no_numbers_that_numpy_lacks(given, tmp_path: Path) -> None:
    torch.save({"1.weight": torch.zeros(2, 3, dtype=torch.bits8)}, tmp_path / "odd.pt")
    with pytest.raises(rw.RoundweaveError, match="no dense tensor with values"):
        given("(X, Y)", start_from=str(tmp_path / "odd.pt"))


def test_a_server_with_nothing_in_flight_is_refused(given) -> None:
    run = given("(X, Y)", algorithm="downpour", rounds=2, name="served")
    store = Store(run.path)
    for record in store.records.values():
        record["server"] = record["server"] and record["server"] | {"in_flight": {}}
    store.seal()
    assert "record has 0 partitions in flight" in str(rw.open_run(run.path).replay(2))
    with pytest.raises(RoundFailed, match="record has 0 partitions in flight"):
        given("(X, Y)", algorithm="downpour", rounds=3, name="served")


def test_a_layout_beyond_memory_is_refused_before_it_is_taken(given) -> None:
    run = given("(X, Y)")
    store = Store(run.path)
    store.attributes["schema"]["layout"]["params"][0][2] = [10**13, 3]
    store.seal()
    with pytest.raises(StoreError, match=r"would take 120,000\.0 GB of memory"):
        rw.open_run(run.path).round(1).params  # noqa: B018 - reading it is what is tried


def test_a_disk_without_hard_links_is_named(given, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("roundweave.storage.places.local.os.link", link)
    with pytest.raises(PlaceError, match="its disk has no hard links; give another --root"):
        given("(X, Y)")
