"""Several partitions trained as one batched network: its replicas, the mapper, and the steps that they take.

It is tried whether each replica has the bits that it has alone.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from roundweave.storage.errors import ModelError, UsageError, failing_as, one_line
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import pack, same_bits
from roundweave.tasks.algorithms.algebra import Map, as_given, says
from roundweave.tasks.algorithms.maps.backprop import backprop, descend, minus
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.maps.optimizers import trained_of
from roundweave.tasks.compute.mapper import MapInput, Mapper
from roundweave.tasks.data.examples import Examples, passes, used_of
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective, mean_loss
from roundweave.tasks.numerics.pinning import derive_seed, pinned

TRIED = 32
"""How many examples of a partition a map is tried on, at most."""


class Replicas(nn.Module):
    """Several networks of one kind. Trained parameters are (replica, *shape); the replicas share all else."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters, (replica, *shape), by their name in a single network."""
        return trained_of(self.network)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (replica, example, *) to outputs (replica, example, *)."""
        outputs: torch.Tensor = vmap(self._one)(self.trained, inputs)
        return outputs

    def _one(self, trained: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(self.network, dict(trained), (inputs,))
        return outputs


@dataclass(frozen=True)
class Stacked:
    """An objective for `count` replicas at once, each with its own examples."""

    objective: Objective
    count: int

    def network(self, state: State) -> Replicas:
        """New replicas that all start from a state, in training mode."""
        network = self.objective.network(state)
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.expand(self.count, *parameter.shape).clone()
        return Replicas(network)

    def loss_of(self, network: Replicas, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of each replica, (replica,), on inputs and targets (replica, example, *)."""
        with self.objective.casting(inputs.device.type):
            losses: torch.Tensor = vmap(self.objective.value)(network(inputs), targets)
        return losses.view(self.count)


RATE = 1 / 7
"""The learning rate of the steps that are tried. No floating-point type holds it, so rounding shows up."""

RANDOM = "it draws random numbers, as dropout does"


def check_stackable(stacked: Stacked, examples: Examples) -> None:
    """Raise `ModelError` for networks that cannot be trained as one batched network, or not to the same bits.

    It tries a step of one network, and the same step of replicas that have different parameters.
    """
    objective, count = stacked.objective, stacked.count
    with failing_as(lambda error: refusal(objective, f"they fail with {one_line(error)}")):
        alone = objective.fresh()
        _check_alone(objective, alone, examples)
        batch = Examples(*(t.expand(count, *t.shape).contiguous() for t in (examples.inputs, examples.targets)))
        start = _scattered(stacked.network(objective.initial()))
        _check_apart(stacked, start, batch)
        _check_agreement(stacked, alone, start, batch)


def _check_alone(objective: Objective, network: nn.Module, examples: Examples) -> None:
    """Raise `ModelError` for a network that changes its buffers in training, or draws random numbers."""
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    losses = []
    for seed in (0, 1):  # the generators are not compared: other threads of a worker draw from them, too
        with pinned(seed, torch.get_num_threads()), torch.no_grad():
            losses.append(objective.loss_of(network, examples.inputs, examples.targets))
    for name, buffer in network.named_buffers():
        if not same_bits(buffers[name], buffer):
            raise refusal(objective, f"training changes its buffer {name}, as BatchNorm does")
    if not same_bits(*losses):
        raise refusal(objective, RANDOM)


def _check_apart(stacked: Stacked, start: Mapping[str, torch.Tensor], batch: Examples) -> None:
    """Raise `ModelError` if the bits of a replica's step depend on its place or on the other replicas.

    It tries steps from parameters, (replica, *shape) by name, on a batch (replica, example, *).
    """
    places = torch.arange(stacked.count)
    order = torch.randperm(stacked.count, generator=torch.Generator().manual_seed(derive_seed("order")))
    each, again, moved, same = (
        _stepped(stacked, start, batch, chosen, seed)
        for seed, chosen in enumerate((places, places, order, places * 0))
    )
    if not all(map(same_bits, each, again)):
        raise refusal(stacked.objective, RANDOM)
    for here, there, copies in zip(each, moved, same, strict=True):
        if not (same_bits(here[order], there) and same_bits(here[:1].expand_as(copies), copies)):
            why = "a step of one has other bits in another place, or beside others"
            raise refusal(stacked.objective, why, ", or try a multiple of 64 or another batch_size")


def _stepped(
    stacked: Stacked, start: Mapping[str, torch.Tensor], batch: Examples, places: torch.Tensor, seed: int
) -> list[torch.Tensor]:
    """The losses and parameters after a step in which place i has the parameters and examples of `places[i]`."""
    network = _network_at(stacked, start, places)
    with pinned(seed, torch.get_num_threads()):
        losses = backprop(stacked, network, Examples(batch.inputs[places], batch.targets[places]))
        descend(list(network.trained.values()), RATE)
    return [losses, *(parameter.detach() for parameter in network.trained.values())]


def _network_at(stacked: Stacked, start: Mapping[str, torch.Tensor], places: torch.Tensor) -> Replicas:
    """New replicas, of which that in place i has the parameters of `places[i]`."""
    network = stacked.network(stacked.objective.initial())
    for name, parameter in network.trained.items():
        parameter.data.copy_(start[name][places])
    return network


def _check_agreement(
    stacked: Stacked, alone: nn.Module, start: Mapping[str, torch.Tensor], batch: Examples
) -> None:
    """Raise `ModelError` unless the first replica's gradient is that of a single network, up to rounding."""
    objective, network = stacked.objective, _network_at(stacked, start, torch.arange(stacked.count))
    own = {name: parameter for name, parameter in alone.named_parameters() if name in start}
    for name, parameter in own.items():
        parameter.data.copy_(start[name][0])
    objective.loss_of(alone, batch.inputs[0], batch.targets[0]).backward()
    backprop(stacked, network, batch)
    single = torch.cat([_gradient(parameter).flatten() for parameter in own.values()])
    replica = torch.cat([_gradient(network.trained[name])[0].flatten() for name in own])
    rounded = torch.bfloat16 if objective.precision == "bf16" else single.dtype
    if (replica - single).norm() > single.norm() * torch.finfo(rounded).eps ** 0.5:
        raise refusal(objective, "the gradient of a replica differs from the one that it has alone")


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _scattered(network: Replicas) -> dict[str, torch.Tensor]:
    """The parameters of each replica, (replica, *shape) by name, times different random factors near 1."""
    generator = torch.Generator().manual_seed(derive_seed("replicas"))
    noise = {name: torch.randn(p.shape, generator=generator) for name, p in network.trained.items()}
    return {name: p.detach() * (1 + noise[name] / 8).to(p.dtype) for name, p in network.trained.items()}


def refusal(objective: Objective, why: str, advice: str = "") -> ModelError:
    """The error that an objective's networks cannot be stacked, with the reason and what to do."""
    return ModelError(
        f"replicas of model {objective.model.name} cannot be stacked: {why}; leave stacked at 1{advice}"
    )


@dataclass(frozen=True)
class StackedMapper(Mapper):
    """Trains up to `at_once` partitions by plain SGD from the same state, each as if it were alone.

    The bits of an update depend on the number `at_once`, but not on the other partitions. If fewer are mapped,
    copies fill the other places.
    """

    def check_map(self, map: Map) -> None:
        """Raise `UsageError` for a map that is not plain SGD from a shared start."""
        if not (isinstance(map, LocalSteps) and says(map, "stackable")):
            raise UsageError(
                f"stacked = {self.at_once} is for plain SGD from a shared start, not for map {as_given(map)}; "
                "leave one of them out"
            )

    def check_examples(self, partitions: Any, partition: int) -> None:
        """Raise `DataError` unless examples are held in memory."""
        partitions.check_in_memory("stacked", partition)

    def check(self, map: Any, objective: Objective, partitions: Any, partition: int, sizes: Sequence[int]) -> None:
        """Raise what `try_on` raises."""
        self.try_on(map, objective, partitions.sample(partition, TRIED), sizes or _dealt(partitions))

    def try_on(self, map: LocalSteps, objective: Objective, examples: Examples, sizes: Sequence[int]) -> None:
        """Raise `ModelError` if such networks cannot be stacked. Batches of each length that occurs are tried.

        `sizes` are the numbers of examples that partitions have.
        """
        lengths = set[int]()
        for size in {*sizes}:
            full = min(map.batch_size or size, size)
            lengths |= {full, used_of(size, map.whole) % full} if map.count(size) > size // full else {full}
        for length in sorted(lengths - {0} or {len(examples)}, reverse=True):
            rows = torch.arange(length) % len(examples)
            batch = Examples(examples.inputs[rows], examples.targets[rows])
            check_stackable(Stacked(objective, self.at_once), batch)

    def __call__(self, map: Any, objective: Objective, state: State, inputs: Sequence[MapInput]) -> list[Update]:
        """The update of each partition, whose direction is one vector (element,) for each dtype."""
        examples = [each for each, _, _ in inputs]
        counts = [map.count(len(each)) for each in examples]
        rows = [
            drawn_rows(each, map.batch_size, steps, seed, map.whole)
            for (each, _, seed), steps in zip(inputs, counts, strict=True)
        ]
        steps = stacked_steps(examples, rows, self.at_once)
        stacked = Stacked(objective, self.at_once)
        trained, losses = train_stacked(stacked, state, len(rows), steps, map.rate(state))
        updates = []
        for number, each in enumerate(examples):
            arrived = pack(objective.layout.params, {name: tensor[number] for name, tensor in trained.items()})
            update = Update(
                direction=minus(state.params, arrived),
                buffers=state.buffers,
                weight=len(each),
                metrics={"train_loss": losses[number].item()},
            )
            updates.append(update)
        return updates


def _dealt(partitions: Partitions) -> tuple[int, ...]:
    """The sizes of partitions; raises `UsageError` if other splits have other sizes, which would not be tried."""
    sizes, split = _sizes(partitions, 0), partitions.split
    if split.resplit_every and _sizes(partitions, 1) != sizes:
        raise UsageError(
            f"stacked needs partitions whose sizes stay, and each split {split.kind} has others; leave stacked at "
            "1, or resplit_every out"
        )
    return sizes


def _sizes(partitions: Partitions, number: int) -> tuple[int, ...]:
    """The sizes of the partitions of split `number`, in ascending order."""
    return tuple(sorted(partitions.sizes(number)))


def train_stacked(
    stacked: Stacked, state: State, replicas: int, steps: Iterable[tuple[list[int], Examples]], lr: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Train up to `count` replicas from a state with learning rate `lr`, by steps such as `stacked_steps` yields.

    Returns their parameters by name, (replica, *shape), and the means of their losses, (replica,).

    The bits of a replica do not depend on its place, on the other replicas, or on how many there are: each step is
    always one of `count` replicas. `check_stackable` tries whether that holds for a network.
    """
    network = stacked.network(state)
    parameters = list(network.trained.values())
    trained = {name: parameter.detach() for name, parameter in network.trained.items()}
    every = {name: p[:1].repeat(replicas, *[1] * (p.ndim - 1)) for name, p in trained.items()}
    device, losses = next(iter(every.values())).device, list[torch.Tensor]()
    for taking, batches in groupby(steps, itemgetter(0)):
        members = torch.tensor(taking, device=device)
        places = torch.cat([members, members[:1].expand(stacked.count - len(members))])
        for name, parameter in trained.items():
            torch.index_select(every[name], 0, places, out=parameter)
        for _, batch in batches:
            loss = backprop(stacked, network, batch)
            losses.append(loss.new_full((replicas,), math.nan).index_copy(0, members, loss[: len(members)]))
            descend(parameters, lr)
        for name, parameter in trained.items():
            every[name][members] = parameter[: len(members)]
    return every, mean_loss(losses)


def drawn_rows(examples: Examples, size: int | None, steps: int, seed: int, whole: int = 1) -> list[torch.Tensor]:
    """The rows, (row,), of each batch that `Examples.batches` would draw of a replica's examples.

    `size` is that of a batch, None for all examples.
    """
    orders = passes(len(examples), size, steps, seed, used_of(len(examples), whole))
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
