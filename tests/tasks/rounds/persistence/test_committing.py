"""What a commit leaves behind: the split that its round used, and which one that was."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.rounds.splits import split_record
from roundweave.tasks.executors.inline import InlineExecutor
from tests.rows import but_first

FIELDS = {"model": "logistic", "partitions": 3, "local_steps": 1, "resplit_every": 2}


def splits(run) -> dict[str, list[int]]:
    folders = sorted((run.path / "partitions").glob("[0-9]*"))
    return {folder.name: zarr.open_array(folder, mode="r")[...].tolist() for folder in folders}


def test_splits_are_written_as_rounds_use_them(train, tmp_path) -> None:
    config = TrainConfig(**FIELDS, rounds=1_000, name="a", root=tmp_path / "runs")
    executor = InlineExecutor()
    with prepare(plan(config), executor) as ready:
        assert not (ready.store.path / "partitions").exists()
        list(executor.run(ready.job, 1, 3))
        kept = splits(ready.store)
        assert list(kept) == ["0", "1"]
        for number, owners in kept.items():
            assert np.array_equal(owners, ready.job.work.partitions.assignment(int(number)))


def test_a_commit_tells_the_split_that_its_round_used(train) -> None:
    run = train(**FIELDS, rounds=3, name="a")
    told = [run.round(round).commit.split for round in range(4)]
    assert told[0] is None
    assert [split.number for split in told[1:]] == [0, 0, 1]
    for round, split in enumerate(told[1:], start=1):
        assert split == split_record(split.number, run._store.splits.read(round))


def test_a_commit_tells_no_split_where_each_partition_is_given_its_examples(train, own) -> None:
    examples = "torch.arange(18.0).reshape(9, 2), torch.arange(9) % 2"
    source = f"import torch\ndef data(partition, partitions):\n    return {examples}\n"
    run = train(data=f"{own(source)}:data", model="logistic", partitions=2, local_steps=1, rounds=1, name="a")
    assert run.round(1).commit.split is None
    assert run.verify().findings == ()


@pytest.mark.parametrize(
    "lost", but_first(["partitions", "partitions/0/c/0"], ["partitions/0", "partitions/1/c/0"])
)
def test_splits_that_were_lost_are_made_again_when_the_run_goes_on(train, lost) -> None:
    run = train(**FIELDS, rounds=4, name="a")
    before = splits(run)
    run._store.place.delete(lost)
    assert splits(train(**FIELDS, rounds=4, name="a")) == before
