"""The mapper that trains several partitions as one batched network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.compute.mapper import Mapper
from tasks.compute.stacked.courses import course, lengths_of
from tasks.compute.stacked.independence import check_stackable
from tasks.compute.stacked.replicas import Stacked
from tasks.compute.stacked.training import train
from tasks.data.examples import Examples
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import Objective


@dataclass(frozen=True)
class StackedMapper(Mapper):
    """Trains up to `stacked` partitions by plain SGD from the same state, each as if it were alone.

    The bits of an update depend on the number `stacked`, but not on the other partitions. If fewer are mapped at
    once, copies fill the other places.
    """

    map: LocalSteps
    stacked: int = 1

    @property
    def at_once(self) -> int:
        return self.stacked

    def check(self, objective: Objective, examples: Examples, sizes: Sequence[int]) -> None:
        """Raise `ModelError` if such networks cannot be stacked. Batches of each length that occurs are tried.

        `sizes` are the numbers of examples that partitions have.
        """
        local = self.map
        lengths = {n for size in {*sizes} for n in lengths_of(size, local.batch_size, local.count(size))}
        for length in sorted(lengths or {len(examples)}, reverse=True):
            rows = torch.arange(length) % len(examples)
            batch = Examples(examples.inputs[rows], examples.targets[rows])
            check_stackable(Stacked(objective, self.stacked), batch)

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Sequence[Examples],
        carries: Sequence[Mapping[str, Vectors]],
        seeds: Sequence[int],
    ) -> list[Update]:
        """The update of each partition, whose direction is one vector (element,) for each dtype."""
        counts = [self.map.count(len(each)) for each in examples]
        courses = [
            course(each, self.map.batch_size, steps, seed)
            for each, steps, seed in zip(examples, counts, seeds, strict=True)
        ]
        arrived = train(Stacked(objective, self.stacked), state, courses, self.map.rate(state))
        directions = {name: start - arrived.params[name] for name, start in state.params.items()}
        losses = arrived.losses.tolist()
        return [
            Update(
                direction={name: rows[number] for name, rows in directions.items()},
                buffers=state.buffers,
                weight=len(each),
                metrics={"train_loss": losses[number] / counts[number]},
            )
            for number, each in enumerate(examples)
        ]
