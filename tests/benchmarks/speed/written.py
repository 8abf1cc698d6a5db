"""Runs of random numbers that nobody trained, as large or as long as one is to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Score, UpdateRecord
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec


def written(folder: Path, shapes: Mapping[str, tuple[int, ...]], partitions: int, rounds: int) -> Path:
    """A run of a network with these tensors."""
    layout = Layout(tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items()))
    size = sum(spec.size for spec in layout.params)

    def state(round: int) -> State:
        return State({"float32": torch.rand(size)}, round=round)

    attributes = {"config": {"algorithm": {"name": "fed_avg"}, "data": "digits"}, "created": 1.0}
    store = RoundStore.create(folder, Schema(layout, partitions), rounds, attributes, state(0))
    with hold_lease(store.place, "benchmark", rounds) as lease:
        for round in range(1, rounds + 1):
            after, records = state(round), {}
            store.tensors.write_state(after)
            for partition in range(partitions):
                update = Update({"float32": torch.rand(size)}, weight=600, metrics={"train_loss": 1.0})
                store.tensors.write_updates(round, {partition: update})
                record = UpdateRecord(update_digest(update), update.weight, metrics=update.metrics)
                records[partition] = replace(record, seconds=0.1, worker="host:1")
            score = Score(1 / round, {"accuracy": 0.5}, 9)
            store.commit(replace(store.describe(after, "benchmark", lease.epoch), updates=records, score=score))
    return store.path
