"""Two small stores of this version, which every later one must read: `python -m tests.storage.golden.make`.

What they hold is the same wherever and whenever they are made.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Score, UpdateRecord
from roundweave.storage.rounds.splits import split_record
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import match_digest, update_digest
from roundweave.storage.values.state import Layout, Match, State, Update
from roundweave.storage.values.tensors import TensorSpec
from tests.storage.conftest import Tiny

HERE = Path(__file__).parent

LAYOUT = Layout((TensorSpec("fc.weight", "float32", (2, 3)), TensorSpec("fc.bias", "float32", (2,))))
WEIGHTS = (1, 3)


def fed_avg(folder: Path) -> RoundStore:
    """Two rounds of two partitions, of numbers that are exact: partition p sends (p + 1) * round / 8 everywhere.

    As the weights are 1 and 3, the mean of round r is 7 r / 32, and each round subtracts it.
    """
    config = {"algorithm": {"name": "fed_avg", "lr": 0.1, "local_steps": 1}, "data": "digits", "partitions": 2}
    state = State({"float32": torch.ones(8)})
    attributes = {"config": config, "created": 1.0}
    store = RoundStore.create(folder / "fed_avg.zarr", Schema(LAYOUT, 2), 3, attributes, state)
    owners = np.array([1, 0, -1, 1, 1], np.int32)
    store.splits.write(0, lambda number: owners)
    for round in (1, 2):
        records = {}
        for partition, weight in enumerate(WEIGHTS):
            update = Update({"float32": torch.full((8,), (partition + 1) * round / 8)}, weight=weight)
            store.tensors.write_updates(round, {partition: update})
            metrics = {"train_loss": 2.0 - partition}
            records[partition] = UpdateRecord(update_digest(update), weight, metrics=metrics, seconds=0.25)
        state = State({"float32": state.params["float32"] - 7 * round / 32}, round=round)
        store.tensors.write_state(state)
        score = Score(1 / round, {"accuracy": 0.25 * round}, 1)
        told = {"updates": records, "split": split_record(0, owners), "score": score, "seconds": 0.5}
        store.commit(replace(store.describe(state, "writer", 0), **told))
    store.show()
    return store


def everything(folder: Path) -> RoundStore:
    """Every kind of tensor there is: the tiny run, units matched, an update refused, an old carry."""
    matches = (TensorSpec("hidden", "int64", (3,)), TensorSpec("soft", "float32", (2, 2)))
    tiny = Tiny(folder)
    schema = replace(tiny.schema, matches=matches)
    attributes = {"config": {"algorithm": {"name": "matched"}, "partitions": 2}, "created": 2.0}
    store = RoundStore.create(folder / "everything.zarr", schema, 4, attributes, tiny.state(0))
    for round, refused, carry_from in ((1, (), {0: 1, 1: 1}), (2, (1,), {0: 2, 1: 1})):
        commit = tiny.write(store, round, refused=refused, carry_from=carry_from)
        match = matched(round)
        store.tensors.write_matches(round, {0: match})
        updates = {**commit.updates, 0: replace(commit.updates[0], match=match_digest(match))}
        store.commit(replace(commit, updates=updates))
    store.show()
    return store


def matched(round: int) -> Match:
    """How the units of partition 0 were matched in a round: turned by one, and half mixed."""
    turned = torch.arange(3).roll(round)
    similarity = {"hidden": torch.full((3,), 0.5), "soft": torch.full((2,), 0.25)}
    return Match({"hidden": turned, "soft": torch.full((2, 2), 0.5)}, similarity)


MAKERS = (fed_avg, everything)


def packed(store: RoundStore, archive: Path) -> Path:
    """A store as one file, of the same bytes whenever it is made."""
    with tarfile.open(archive, "w:xz") as target:
        for path in sorted(path for path in store.path.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(store.path.parent)))
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                target.addfile(entry, file)
    return archive


def main(folder: Path = HERE) -> None:
    """Write both."""
    with tempfile.TemporaryDirectory() as made:
        for maker in MAKERS:
            packed(maker(Path(made)), folder / f"{maker.__name__}.tar.xz")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
