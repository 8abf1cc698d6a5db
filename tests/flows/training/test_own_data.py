"""Data as people have it: texts with padding for models of Hugging Face, augmented pictures, a disk that fails."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.data.examples import passes
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.numerics.pinning import derive_seed
from tests.conftest import Train

TEXTS = """
import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

WORDS = "round map reduce apply commit state weave fold".split()

def data():
    texts = [" ".join(WORDS[(row * place) % 8] for place in range(1 + row % 7)) for row in range(80)]
    return Dataset.from_dict({"text": texts, "label": [len(text.split()) % 2 for text in texts]})

def padded(examples):
    ids = [torch.tensor([1 + WORDS.index(word) for word in each["text"].split()]) for each in examples]
    ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}

def gpt2_collate(examples):
    batch = padded(examples)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}

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


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.thorough)])
def disk(own, request) -> dict[str, Any]:
    """The fields of a run on pictures on a disk, read by so many processes."""
    file = own(PICTURES)
    fields = {"data": f"{file}:on_disk", "model": f"{file}:model", "loader_workers": request.param}
    return fields | {"local_epochs": 1, "batch_size": 16, "algorithm": "fed_avg"}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file whose presence breaks the disk."""
    return tmp_path / "mine.py.broken"


def texts(file: str) -> dict[str, object]:
    return {"data": f"{file}:data", "model": f"{file}:gpt2", "collate": f"{file}:gpt2_collate"} | LOCAL


def assert_replayed(run) -> None:
    assert {result.status for result in rw.open_run(run.path).replay("all", trust=True).results} == {
        "bit-identical"
    }


@pytest.mark.dear("transformers, which takes seconds to import, against a plain loop")
def test_a_model_of_hugging_face_is_trained_as_in_a_plain_loop(own, train: Train) -> None:
    file = own(TEXTS)
    run = train(**texts(file), partitions=1, split="contiguous", rounds=3, dtype="float64")
    mine = runpy.run_path(file)
    network = run.round(0).load_into(mine["gpt2"]().double()).train()
    rows = run.examples(0, trust=True).index.tolist()
    optimizer, losses = torch.optim.SGD(network.parameters(), 0.05), []
    for round in (1, 2, 3):
        seed = derive_seed(0, round, 0)
        torch.manual_seed(seed)
        (order,) = passes(len(rows), 16, 4, seed)
        for chosen in order.split(16):
            batch = mine["gpt2_collate"]([mine["data"]()[int(rows[place])] for place in chosen])
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


# One whose partitions carry something, and one that has networks of their own.
FIRST = ("scaffold", "d_psgd")
EACH = [pytest.param(name, marks=() if name in FIRST else pytest.mark.thorough) for name in ALGORITHMS]


@pytest.mark.parametrize("algorithm", EACH)
def test_each_algorithm_gives_the_bits_of_the_same_tensors_in_memory(own, train: Train, algorithm: str) -> None:
    file = own(PICTURES)
    fields = {"model": f"{file}:model", "algorithm": algorithm, "partitions": 3, "rounds": 3}
    read, held = (train(data=f"{file}:{name}", **fields) for name in ("data", "tensors"))
    assert read.digest == held.digest
    assert read.round(3).score == held.round(3).score


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


def test_an_example_that_cannot_be_read_costs_its_partition_the_round(train: Train, disk, broken) -> None:
    run = train(**disk, partitions=2, split="contiguous", rounds=3, on_commit=lambda commit: broken.touch())
    assert [[*run.round(round).refused] for round in (1, 2, 3)] == [[], [1], [1]]
    assert re.fullmatch(DISK, run.round(2).refused[1])


def test_a_run_goes_on_when_the_disk_is_mended(train: Train, disk, broken) -> None:
    fields = disk | {"partitions": 1, "rounds": 4}
    whole = train(**fields)
    with pytest.raises(RoundFailed, match=f"round 3: .* partition 0: {DISK}. Rounds to 2 are kept"):
        train(**fields, name="run", on_commit=lambda commit: commit.round < 2 or broken.touch())
    stopped = rw.open_run("run")
    assert len(stopped.history()) == 3
    assert stopped.digest == whole.round(2).commit.state
    broken.unlink()
    assert train(**fields, name="run").digest == whole.digest
