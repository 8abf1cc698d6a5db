"""Data as people have it: texts with padding for models of Hugging Face, augmented pictures, a disk that fails."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.data.examples import passes
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.numerics.pinning import derive_seed
from tests.conftest import Train

TEXTS = """
import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

WORDS = "round map reduce apply commit state weave fold".split()

def data():
    texts = [" ".join(WORDS[(row * place) % 8] for place in range(1 + row % 7)) for row in range(80)]
    return Dataset.from_dict({"text": texts, "label": [len(text.split()) % 2 for text in texts]})

def padded(examples):
    ids = [torch.tensor([1 + WORDS.index(word) for word in each["text"].split()]) for each in examples]
    ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}

def bert_collate(examples):
    return {**padded(examples), "labels": torch.tensor([int(each["label"]) for each in examples])}

def gpt2_collate(examples):
    batch = padded(examples)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}

def bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=9, **sizes))

def gpt2(): return GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2, n_positions=16))
"""

PICTURES = """
import os
import torch
from torch.utils.data import Dataset

class Pictures(Dataset):
    classes = tuple("0123456789")
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(0, 10, (count,), generator=generator)
        self.pictures = torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    def __len__(self): return len(self.targets)
    def __getitem__(self, number): return self.pictures[number], int(self.targets[number])

class OnDisk(Pictures):
    def __getitem__(self, number):
        if number == 70 and os.path.exists(FILE): raise OSError("the disk is gone")
        return super().__getitem__(number)

FILE = __file__ + ".broken"
def data(): return Pictures(120, 0), Pictures(40, 1)
def on_disk(): return OnDisk(120, 0), Pictures(40, 1)

def tensors():
    parts = Pictures(120, 0), Pictures(40, 1)
    return [(part.pictures.float() / 255, part.targets) for part in parts]

def augment(picture):
    top, left = torch.randint(0, 3, (2,)).tolist()
    picture = torch.nn.functional.pad(picture, (1, 1, 1, 1))[:, top : top + 8, left : left + 8]
    return picture.flip(-1) if torch.rand(()) < 0.5 else picture

def model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10))
"""

LOCAL = {"local_steps": 4, "batch_size": 16, "lr": 0.05, "algorithm": "fed_avg"}


DISK = r"its map failed with .*on_disk: OSError: the disk is gone \(line 17 of .*mine.py\)"


class Disk:
    """Pictures on a disk that fails where a file lies beside it; a call gives the fields of a run on them."""

    def __init__(self, file: str) -> None:
        self.file, self.marker = file, Path(f"{file}.broken")

    def __call__(self, workers: int) -> dict[str, Any]:
        fields = {"data": f"{self.file}:on_disk", "model": f"{self.file}:model", "loader_workers": workers}
        return fields | {"local_epochs": 1, "batch_size": 16, "algorithm": "fed_avg"}

    def fail_after(self, round: int) -> Callable[[Any], None]:
        return lambda commit: self.marker.touch() if commit.round == round else None

    def mend(self) -> None:
        self.marker.unlink()


@pytest.fixture
def disk(own) -> Disk:
    return Disk(own(PICTURES))


def texts(file: str, name: str) -> dict[str, object]:
    return {"data": f"{file}:data", "model": f"{file}:{name}", "collate": f"{file}:{name}_collate"}


def assert_replayed(run) -> None:
    assert {result.status for result in rw.open_run(run.path).replay("all", trust=True).results} == {
        "bit-identical"
    }


@pytest.mark.dear("transformers, which takes seconds to import, against a plain loop")
@pytest.mark.parametrize("name", [pytest.param("bert", marks=pytest.mark.thorough), "gpt2"])
def test_a_model_of_hugging_face_is_trained_as_in_a_plain_loop(own, train: Train, name: str) -> None:
    file = own(TEXTS)
    run = train(**texts(file, name), **LOCAL, partitions=1, split="contiguous", rounds=3, dtype="float64")
    mine = runpy.run_path(file)
    network = run.round(0).load_into(mine[name]().double()).train()
    rows = run.examples(0, trust=True).index.tolist()
    optimizer, losses = torch.optim.SGD(network.parameters(), 0.05), []
    for round in (1, 2, 3):
        seed = derive_seed(0, round, 0)
        torch.manual_seed(seed)
        (order,) = passes(len(rows), 16, 4, seed)
        for chosen in order.split(16):
            batch = mine[f"{name}_collate"]([mine["data"]()[int(rows[place])] for place in chosen])
            optimizer.zero_grad()
            loss = network(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    means = torch.tensor(losses, dtype=torch.float64).reshape(3, 4).mean(1).tolist()
    assert run.history()["train_loss"].tolist()[-3:] == pytest.approx(means, abs=1e-6)
    for key, tensor in network.named_parameters():
        torch.testing.assert_close(run.round(3).params[key], tensor.detach(), rtol=0, atol=1e-9)
    assert_replayed(run)


# One that takes gradients, one whose partitions carry something, and one that has networks of their own.
FIRST = ("sync_sgd", "scaffold", "d_psgd")
EACH = [pytest.param(name, marks=() if name in FIRST else pytest.mark.thorough) for name in ALGORITHMS]


@pytest.mark.parametrize("algorithm", EACH)
def test_each_algorithm_gives_the_bits_of_the_same_tensors_in_memory(own, train: Train, algorithm: str) -> None:
    file = own(PICTURES)
    fields = {"model": f"{file}:model", "algorithm": algorithm, "partitions": 3, "rounds": 3}
    read, held = (train(data=f"{file}:{name}", **fields) for name in ("data", "tensors"))
    assert read.digest == held.digest
    assert read.round(3).score == held.round(3).score


@pytest.mark.slow  # each worker imports transformers
@pytest.mark.parametrize("executor", [GraphExecutor, RanksExecutor])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_texts_give_the_same_bits_wherever_they_are_read(own, train: Train, client, name: str, executor) -> None:
    fields = texts(own(TEXTS), name) | LOCAL | {"partitions": 3, "rounds": 2}
    alone = train(**fields)
    assert train(executor(client), 2, **fields, loader_workers=1).digest == alone.digest


@pytest.mark.thorough
def test_augmented_pictures_give_the_same_bits_with_and_without_processes_that_read_ahead(
    own, train: Train, client
) -> None:
    file = own(PICTURES)
    fields = {"data": f"{file}:data", "transform": f"{file}:augment", "model": f"{file}:model"} | LOCAL
    fields |= {"partitions": 3, "rounds": 3}
    alone = train(**fields)
    assert train(GraphExecutor(client), 3, **fields, loader_workers=2).digest == alone.digest
    assert train(**{**fields, "transform": None}).digest != alone.digest
    assert_replayed(alone)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_example_that_cannot_be_read_costs_its_partition_the_round(train: Train, disk, workers: int) -> None:
    fields = disk(workers)
    run = train(**fields, partitions=2, split="contiguous", rounds=3, on_commit=disk.fail_after(1))
    assert [[*run.round(round).refused] for round in (1, 2, 3)] == [[], [1], [1]]
    assert re.fullmatch(DISK, run.round(2).refused[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_when_the_disk_is_mended(train: Train, disk, workers: int) -> None:
    fields = disk(workers) | {"partitions": 1, "rounds": 4}
    whole = train(**fields)
    with pytest.raises(RoundFailed, match=f"round 3: .* partition 0: {DISK}. Rounds to 2 are kept"):
        train(**fields, name="run", on_commit=disk.fail_after(2))
    stopped = rw.open_run("run")
    assert len(stopped.history()) == 3
    assert stopped.digest == whole.round(2).commit.state
    disk.mend()
    assert train(**fields, name="run").digest == whole.digest
