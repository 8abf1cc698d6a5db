"""The mapper that trains several partitions as one batched network, and the steps that its replicas take."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import torch

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, pack
from roundweave.tasks.algorithms.maps.backprop import backprop, descend, minus
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.compute.stacked.replicas import Stacked, check_stackable
from roundweave.tasks.data.examples import Examples, passes
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


def drawn_rows(examples: Examples, size: int | None, steps: int, seed: int) -> list[torch.Tensor]:
    """The rows, (row,), of each batch that `Examples.batches` would draw of a replica's examples.

    `size` is that of a batch, None for all examples.
    """
    orders = passes(len(examples), size, steps, seed)
    return [rows for order in orders for rows in order.to(examples.inputs.device).split(size or len(order))]


def stacked_steps(
    examples: Sequence[Examples], rows: Iterable[Iterable[torch.Tensor]], places: int
) -> Iterator[tuple[list[int], Examples]]:
    """Yield each step: the replicas that take it, by number, and their batches as one, (place, example, *).

    It is the step of the replicas whose next batch has the most common length. They have the first of the
    `places`; the others hold copies of the first batch, so that the number of places is always the same.
    """
    left = [deque(each) for each in rows]
    while any(left):
        common = Counter(len(each[0]) for each in left if each)
        length = max(common, key=lambda each: (common[each], each))
        members = [number for number, each in enumerate(left) if each and len(each[0]) == length]
        taken = [(examples[number], left[number].popleft()) for number in members]
        inputs, targets = (
            _batch([(getattr(each, part), chosen) for each, chosen in taken], places)
            for part in ("inputs", "targets")
        )
        yield members, Examples(inputs, targets)


def _batch(chosen: Sequence[tuple[torch.Tensor, torch.Tensor]], places: int) -> torch.Tensor:
    """Copy rows (row,) of each tensor (example, *) into memory of their own, (place, row, *).

    It is not a part of a larger batch: a step may have other bits where its batch begins elsewhere in memory.
    """
    first, rows = chosen[0]
    batch = first.new_empty((places, len(rows), *first.shape[1:]))
    for place, (tensor, indices) in enumerate(chosen):
        torch.index_select(tensor, 0, indices, out=batch[place])
    batch[len(chosen) :] = batch[0]
    return batch
