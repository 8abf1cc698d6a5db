"""The mapper that trains several partitions as one batched network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import torch

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, pack
from roundweave.tasks.algorithms.maps.backprop import backprop, descend, minus
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.compute.stacked.batches import drawn_rows, stacked_steps
from roundweave.tasks.compute.stacked.replicas import Stacked, check_stackable
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective


@dataclass(frozen=True)
class StackedMapper(Mapper):
    """Trains up to `at_once` partitions by plain SGD from the same state, each as if it were alone.

    The bits of an update depend on the number `at_once`, but not on the other partitions. If fewer are mapped,
    copies fill the other places.
    """

    map: LocalSteps

    def check(self, objective: Objective, examples: Examples, sizes: Sequence[int]) -> None:
        """Raise `ModelError` if such networks cannot be stacked. Batches of each length that occurs are tried.

        `sizes` are the numbers of examples that partitions have.
        """
        local = self.map
        lengths = set[int]()
        for size in {*sizes}:
            full = min(local.batch_size or size, size)
            lengths |= {full, size % full} if local.count(size) > size // full else {full}
        for length in sorted(lengths - {0} or {len(examples)}, reverse=True):
            rows = torch.arange(length) % len(examples)
            batch = Examples(examples.inputs[rows], examples.targets[rows])
            check_stackable(Stacked(objective, self.at_once), batch)

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Sequence[Examples],
        carries: Sequence[Slots],
        seeds: Sequence[int],
    ) -> list[Update]:
        """The update of each partition, whose direction is one vector (element,) for each dtype."""
        counts = [self.map.count(len(each)) for each in examples]
        rows = [
            drawn_rows(each, self.map.batch_size, steps, seed)
            for each, steps, seed in zip(examples, counts, seeds, strict=True)
        ]
        steps = stacked_steps(examples, rows, self.at_once)
        stacked = Stacked(objective, self.at_once)
        trained, losses = train_stacked(stacked, state, len(rows), steps, self.map.rate(state))
        updates = []
        for number, each in enumerate(examples):
            arrived = pack(objective.layout.params, {name: tensor[number] for name, tensor in trained.items()})
            update = Update(
                direction=minus(state.params, arrived),
                buffers=state.buffers,
                weight=len(each),
                metrics={"train_loss": losses[number].item() / counts[number]},
            )
            updates.append(update)
        return updates


def train_stacked(
    stacked: Stacked, state: State, replicas: int, steps: Iterable[tuple[list[int], Examples]], lr: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Train up to `count` replicas from a state with learning rate `lr`, by steps such as `stacked_steps` yields.

    Returns their parameters by name, (replica, *shape), and the sums of their losses, (replica,).

    The bits of a replica do not depend on its place, on the other replicas, or on how many there are: each step is
    always one of `count` replicas. `check_stackable` tries whether that holds for a network.
    """
    network = stacked.network(state)
    parameters = list(network.trained.values())
    trained = {name: parameter.detach() for name, parameter in network.trained.items()}
    every = {name: p[:1].repeat(replicas, *[1] * (p.ndim - 1)) for name, p in trained.items()}
    dtype, device = (first := next(iter(every.values()))).dtype, first.device
    losses = torch.zeros(replicas, dtype=torch.promote_types(dtype, torch.float32), device=device)
    for taking, batches in groupby(steps, itemgetter(0)):
        members = torch.tensor(taking, device=device)
        places = torch.cat([members, members[:1].expand(stacked.count - len(members))])
        for name, parameter in trained.items():
            torch.index_select(every[name], 0, places, out=parameter)
        total = losses[places]
        for _, batch in batches:
            total += backprop(stacked, network, batch)
            descend(parameters, lr)
        for name, parameter in trained.items():
            every[name][members] = parameter[: len(members)]
        losses[members] = total[: len(members)]
    return every, losses
