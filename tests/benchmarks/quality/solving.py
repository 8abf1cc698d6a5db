"""What a solve and a distillation add to a matched merge: tables of docs/explanation/measurements.md.

    python -m tests.benchmarks.quality.solving mnist:DIR [--deal halves | sevens | classes:5] [--epochs 10]
        [--annealed] [--seeds 3] [--model mlp | resnet | vit] [--no-rounds] [--only ROW]

Networks are trained apart on examples of their own, from initial weights of their own. `sevens` gives one network
all sevens and a tenth of the rest, and the other the rest; `classes:N` gives each of N networks classes of its
own. They are matched by weights and activations on 1,000 unlabelled inputs of each. Prints the mean over seeds of
held-out accuracy in per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, islice
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from torch import nn

from roundweave.tasks.data.loading import Partition
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.search.activations import activation_moments
from roundweave.tasks.matching.search.matches import By, Evidence, match_all
from roundweave.tasks.matching.search.within import PAIRS, match_within
from roundweave.tasks.matching.solving.grams import gram_matrices, layers_of
from roundweave.tasks.matching.solving.solve import least_squares, regmean
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.distilling import distil
from roundweave.tasks.merging.gallery import Ensemble
from roundweave.tasks.merging.repair import has_batch_norm, repair
from roundweave.tasks.numerics.pinning import derive_seed, pinned
from tests.benchmarks.quality.merging import BATCH, Bench, Matches, bench, named
from tests.benchmarks.rounds import markdown, spread

INPUTS = 1000
"""Unlabelled inputs of each network."""

STEPS = 500
"""Steps of distillation."""

SEVEN = 7


@dataclass(frozen=True)
class Dealt(Bench):
    """Networks' own parts of the examples; `deal` says which."""

    deal: str = "halves"

    @cached_property
    def parts(self) -> list[Partition]:
        """The examples of each network, in an order drawn by the seed, and all held-out ones for each."""
        whole = Partition(self.partitions.load(0, 0), (self.partitions.held_out_part(0, 0, 1),))
        labels = np.asarray(whole.train.targets)
        generator = np.random.default_rng(self.partitions.split.seed)
        order = generator.permutation(len(labels))
        kept = (order[np.isin(order, rows)] for rows in self._rows(labels, generator))
        return [replace(whole, train=whole.train.read(rows)) for rows in kept]

    def _rows(self, labels: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        kind, _, count = self.deal.partition(":")
        if kind == "classes":
            groups = np.array_split(np.unique(labels), int(count))
            return [np.flatnonzero(np.isin(labels, group)) for group in groups]
        if kind == "sevens":
            few = (labels == SEVEN) | (generator.random(len(labels)) < 0.1)
            return [np.flatnonzero(few), np.flatnonzero(~few)]
        return np.array_split(generator.permutation(len(labels)), 2)


@dataclass(frozen=True)
class Parents:
    """Networks that were trained apart: as they came and in one order of units, with inputs of their own."""

    here: Dealt
    states: Sequence[Tensors]

    @cached_property
    def inputs(self) -> list[torch.Tensor]:
        """Inputs (examples, …) of each network's own."""
        return [part.train.inputs[:INPUTS] for part in self.here.parts]

    @cached_property
    def aligned(self) -> list[Tensors]:
        """The networks with their units matched by weights and activations."""
        return self._permuted("mixed", list(combinations(range(len(self.states)), 2)), match_all)

    @property
    def equal(self) -> list[float]:
        """A coefficient for each network."""
        return [1.0] * len(self.states)

    def zipped(self) -> Tensors:
        """The mean of two networks whose units were matched within each as well as across, by activations."""
        return self._repaired(average(self._permuted("activations", PAIRS, match_within), self.equal))

    def mean(self) -> Tensors:
        """The mean of the matched networks."""
        return self._repaired(average(self.aligned, self.equal))

    def regressed(self) -> Tensors:
        """Their mean with each layer solved for what parents give on their own inputs of it."""
        network = self.here.network(self.states[0])
        grams = [gram_matrices(network, s, [x]) for s, x in zip(self.aligned, self.inputs, strict=True)]
        layers = layers_of(network, [self.inputs[0][:BATCH]])
        solved = dict(regmean(self.aligned, grams, layers, self.equal))
        return self._repaired(average(self.aligned, self.equal) | solved)

    def layered(self, shared: bool = False) -> Tensors:
        """Their mean with one layer solved after the other, on own inputs, or on all inputs for each network."""
        inputs = [torch.cat(self.inputs)] * len(self.states) if shared else self.inputs
        network = self.here.network(self.states[0])
        return self._repaired(least_squares(network, self.aligned, [[x] for x in inputs], self.equal))

    def distilled(self, start: Tensors, inputs: Sequence[torch.Tensor], teachers: Sequence[nn.Module]) -> Tensors:
        """A network after the teachers have taught it, each on its inputs, in random batches."""
        student = self.here.network(start)
        seed = self.here.partitions.split.seed
        with pinned(derive_seed(seed, "distil"), threads=1):
            batches = [drawn(x, derive_seed(seed, number)) for number, x in enumerate(inputs)]
            distil(student, teachers, [islice(each, STEPS) for each in batches], STEPS, 1e-3, -1)
        return student.state_dict()

    def _permuted(self, by: By, pairs: Sequence[tuple[int, int]], matches: Matches) -> list[Tensors]:
        every, network = torch.cat(self.inputs), self.here.network(self.states[0])
        units = find_units(network, (every[:BATCH],))
        with pinned(0, threads=1):
            moments = activation_moments(network, self.states, [every], units, pairs)
            orders = matches(Evidence(self.states, units, by, None, moments))
        return [units.permute(state, order) for state, order in zip(self.states, orders, strict=True)]

    def _repaired(self, state: Tensors) -> Tensors:
        network = self.here.network(state)
        if has_batch_norm(network):
            with pinned(0, threads=1):
                repair(network, [], self.equal, torch.cat(self.inputs), find_units(network, (self.inputs[0][:2],)))
        return network.state_dict()


def drawn(inputs: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Random batches of 64 inputs for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield inputs[torch.randint(len(inputs), (64,), generator=generator)]


def candidates(parents: Parents) -> dict[str, Callable[[], Tensors]]:
    """What can be made of matched networks, by name; each is made when it is asked for."""
    here = parents.here
    teachers = [here.network(state) for state in parents.states]
    every = [part.train.inputs for part in here.parts]
    ensemble = Ensemble(teachers, logits=True).eval()

    def taught(inputs: Sequence[torch.Tensor], teachers: Sequence[nn.Module], fresh: bool = False) -> Tensors:
        return parents.distilled(start if fresh else parents.mean(), inputs, teachers)

    start = here.tensors(here.objective.seeded(derive_seed(here.partitions.split.seed, "fresh")).initial())
    within = {"matched within and across": parents.zipped} if len(teachers) == 2 else {}
    return {
        "matched, mean": parents.mean,
        "matched, RegMean": parents.regressed,
        "matched, PLeaS": parents.layered,
        "matched, PLeaS, all inputs for each": partial(parents.layered, shared=True),
        **within,
        "matched, distilled on own 1,000 inputs": lambda: taught(parents.inputs, teachers),
        "matched, distilled on all own inputs": lambda: taught(every, teachers),
        "matched, distilled from the ensemble": lambda: taught([torch.cat(parents.inputs)], [ensemble]),
        "matched, distilled from the ensemble on all inputs": lambda: taught([torch.cat(every)], [ensemble]),
        "from scratch, distilled on own 1,000 inputs": lambda: taught(parents.inputs, teachers, fresh=True),
        "from scratch, distilled on all own inputs": lambda: taught(every, teachers, fresh=True),
    }


ONWARD = ("matched, mean", "matched, RegMean", "matched, PLeaS", "matched, distilled on own 1,000 inputs")
"""What goes on in rounds of one local epoch over the parents' examples."""


def rows(here: Dealt, whole: Bench, rounds: bool, only: str) -> Iterator[tuple[str, float]]:
    """The accuracy of each network by its name; without `rounds`, of those that see no more labels."""

    def accuracy(state: Tensors) -> float:
        return (here.scored(here.network(state)).accuracy or 0.0) * 100

    parents = Parents(here, [here.tensors(here.trained(part)) for part in range(len(here.parts))])
    for number, state in enumerate(parents.states):
        yield f"parent {number}", accuracy(state)
    ensemble = Ensemble([here.network(state) for state in parents.states], logits=True).eval()
    yield "ensemble", (here.scored(ensemble).accuracy or 0.0) * 100
    yield "plain mean", accuracy(average(parents.states, parents.equal))
    for name, make in candidates(parents).items():
        if only not in name:
            continue
        yield name, accuracy(state := make())
        if rounds and name in ONWARD:
            after = here.rounds(state, 5)
            yield f"{name}, then 1 round", accuracy(after[0])
            yield f"{name}, then 5 rounds", accuracy(after[4])
    if rounds:
        yield "one network, all the data", accuracy(whole.tensors(whole.trained(0)))


def main(
    data: str,
    deal: Annotated[str, typer.Option(help="halves, sevens, or classes:N")] = "halves",
    epochs: int = 10,
    seeds: int = 3,
    model: Literal["mlp", "resnet", "vit"] = "mlp",
    annealed: bool = False,
    only: Annotated[str, typer.Option(help="merges whose names have this in them")] = "",
    rounds: Annotated[bool, typer.Option(help="with rounds, and one network on all data")] = True,
) -> None:
    """Print the table as Markdown."""
    torch.set_num_threads(1)
    every: list[dict[str, float]] = []
    for seed in range(seeds):
        whole = bench(seed, 1, epochs, annealed, data=data, model=named(model))
        here = Dealt(whole.objective, whole.partitions, epochs, annealed, deal)
        every.append({})
        for name, value in rows(here, whole, rounds, only):
            every[-1][name] = value
            typer.echo(f"seed {seed}: {name} {value:.2f}", err=True)
    markdown(("network", "accuracy"), [(name, spread([each[name] for each in every])) for name in every[0]])


if __name__ == "__main__":
    typer.run(main)
