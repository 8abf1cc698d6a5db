"""Two networks trained apart, each on its half of the data: tables of docs/explanation/measurements.md.

    python -m tests.benchmarks.quality.merging mnist:DIR [--epochs 10] [--seeds 3]
        [--model mlp | deep | resnet | vit] [--annealed] [--split shards:1] [--every]

Each begins from initial weights of its own and trains by SGD in batches of 32 with lr 0.1, or `--annealed` along
half a cosine towards 0. Prints means over seeds and standard deviations: held-out accuracy in per cent, and loss,
of what can be made of the two. `--every` adds mixtures and two that begin alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from roundweave import LocalSteps, Objective, Partitions, State, TrainConfig, pack
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.storage.rounds.commits import Score
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import Tensors, UnitGroups
from roundweave.tasks.matching.search.activations import activation_moments
from roundweave.tasks.matching.search.matches import By, Evidence, match_all, match_each
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.gallery import Ensemble
from roundweave.tasks.merging.repair import repair
from roundweave.tasks.numerics.pinning import derive_seed, pinned
from roundweave.tasks.rounds.scoring import score, tally
from tests.benchmarks.rounds import markdown, spread

EXAMPLES = 2000
"""Training examples of both halves on which units are compared and repaired."""

BATCH = 100

ROUNDS = 5
"""Rounds of one local epoch in which the merged network goes on."""


@dataclass(frozen=True)
class Bench:
    """A split of the data, and what is trained on it."""

    objective: Objective
    partitions: Partitions
    epochs: int
    annealed: bool = False

    @cached_property
    def parts(self) -> list[Partition]:
        """The examples."""
        dealt, count = self.partitions, self.partitions.split.partitions
        return [Partition(dealt.load(0, part), (dealt.held_out_part(part, part, count),)) for part in range(count)]

    def trained(self, part: int, own: bool = True, start: State | None = None) -> State:
        """A network trained on one partition, from initial weights of its own, common ones, or a state."""
        seed = derive_seed(self.partitions.split.seed, self.partitions.split.partitions, part)
        state = start or (self.objective.seeded(seed) if own else self.objective).initial()
        if not self.annealed:
            return self.walked(state, part, LocalSteps(local_epochs=self.epochs), seed)
        local = LocalSteps(local_epochs=1, lr_schedule=f"cosine:{self.epochs}")
        for epoch in range(self.epochs):
            state = self.walked(replace(state, round=epoch), part, local, derive_seed(seed, epoch))
        return state

    def walked(self, state: State, part: int, local: LocalSteps, seed: int) -> State:
        """Where local training on one partition arrives from a state."""
        with pinned(seed, threads=1):
            update = local(self.objective, state, self.parts[part].train, {}, seed)
        params = {dtype: vector - update.direction[dtype] for dtype, vector in state.params.items()}
        return replace(state, params=params, buffers=update.buffers)

    def rounds(self, merged: Tensors, count: int) -> list[Tensors]:
        """What so many rounds of one local epoch make of a merged network: the networks after each."""
        local = LocalSteps(local_epochs=1, lr_schedule=f"cosine:{count}" if self.annealed else "constant")
        networks = [merged]
        for number in range(count):
            start = replace(self.state(networks[-1]), round=number)
            seeds = [derive_seed(self.partitions.split.seed, number, part) for part in range(len(self.parts))]
            apart = [self.walked(start, part, local, seed) for part, seed in enumerate(seeds)]
            networks.append(average([self.tensors(state) for state in apart], [len(p.train) for p in self.parts]))
        return networks[1:]

    def tensors(self, state: State) -> Tensors:
        """The named tensors of a state, (*shape)."""
        return self.objective.network(state).state_dict()

    def state(self, tensors: Tensors) -> State:
        """The state of named tensors, (*shape)."""
        layout = self.objective.layout
        return State(params=pack(layout.params, tensors), buffers=pack(layout.buffers, tensors))

    def network(self, state: Tensors) -> torch.nn.Module:
        """A network with these tensors."""
        network = self.objective.network(self.objective.initial()).eval()
        network.load_state_dict(state)
        return network

    def scored(self, network: torch.nn.Module) -> Score:
        """Its score on all held-out examples."""
        with torch.no_grad(), pinned(0, threads=1):
            tallies = [each for part in self.parts for each in tally(self.objective, network, part.scored[0])]
            found = score(self.objective, tallies, 1)
        assert found is not None
        return found


def bench(seed: int, parts: int, epochs: int, annealed: bool, **fields: str) -> Bench:
    """What one seed trains on so many parts of the data."""
    described = describe(plan(TrainConfig(seed=seed, partitions=parts, **fields)), gather_here)
    return Bench(described.objective, described.partitions, epochs, annealed)


Matches = Callable[[Evidence], list[dict[str, torch.Tensor]]]
SOFT = {"1": 1, "3": 3, "all": None}


def matchings(every: bool) -> Iterator[tuple[str, By, Matches]]:
    """What is compared: permutations by each kind of evidence, and mixtures of the k most similar units."""
    for by in ("weights", "activations", "mixed"):
        yield f"merged, by {by}", by, match_all
    for by in ("weights", "activations") if every else ():
        for name, k in SOFT.items():
            yield f"soft, k = {name}, by {by}", by, lambda e, k=k: match_each(e, k, 0.1)


def repaired(here: Bench, states: list[Tensors], inputs: torch.Tensor, units: UnitGroups) -> torch.nn.Module:
    """The mean of networks with its statistics recomputed, or its units rescaled."""
    network = here.network(average(states, [1, 1]))
    with pinned(0, threads=1):
        repair(network, [here.network(state) for state in states], [1, 1], inputs, units)
    return network


def rows(halves: Bench, whole: Bench, every: bool) -> Iterator[tuple[str, Score, Score | None]]:
    """What is made of two halves, its score, and where it is a mean of two, its score when repaired."""
    arrived = [halves.trained(part) for part in range(2)]
    parents = [halves.tensors(state) for state in arrived]
    inputs = torch.cat([part.train.inputs[: EXAMPLES // 2] for part in halves.parts])
    units = find_units(halves.network(parents[0]), (inputs[:BATCH],))

    def both(states: list[Tensors]) -> tuple[Score, Score]:
        fixed = repaired(halves, states, inputs, units)
        return halves.scored(halves.network(average(states, [1, 1]))), halves.scored(fixed)

    for name, parent in zip(("the first alone", "the second alone"), parents, strict=True):
        yield name, halves.scored(halves.network(parent)), None
    goes_on = halves.tensors(halves.trained(1, start=arrived[0]))
    yield "no merging: the first goes on at the second", halves.scored(halves.network(goes_on)), None
    yield "plain mean", *both(parents)
    moments = activation_moments(halves.network(parents[0]), parents, [inputs], units, [(0, 1)])
    merged: dict[str, list[Tensors]] = {}
    for name, by, matches in matchings(every):
        with pinned(0, threads=1):
            orders = matches(Evidence(parents, units, by, None, moments))
        merged[name] = [units.permute(s, order) for s, order in zip(parents, orders, strict=True)]
        yield name, *both(merged[name])
    start = repaired(halves, merged["merged, by mixed"], inputs, units).state_dict()
    for number, state in enumerate(halves.rounds(start, ROUNDS), 1):
        if number in (1, ROUNDS):
            yield f"merged, by mixed, then rounds: {number}", halves.scored(halves.network(state)), None
    ensemble = Ensemble([halves.network(parent) for parent in parents], logits=True).eval()
    yield "ensemble of the two", halves.scored(ensemble), None
    if every:
        alike = [halves.tensors(halves.trained(part, own=False)) for part in range(2)]
        yield "plain mean, begun alike", *both(alike)
    yield "one network, all the data", whole.scored(whole.network(whole.tensors(whole.trained(0)))), None


def cells(scores: list[Score]) -> list[str]:
    """Accuracy and loss over seeds."""
    accuracies = [100 * s.accuracy for s in scores if s.accuracy is not None]
    return [spread(accuracies), spread([s.loss for s in scores], 3)]


def named(model: str) -> str:
    """A network of `networks.py`, or the mlp."""
    return model if model == "mlp" else f"{Path(__file__).resolve().with_name('networks.py')}:{model}"


def main(
    data: str,
    epochs: int = 10,
    seeds: int = 3,
    model: Annotated[
        Literal["mlp", "deep", "resnet", "vit"],
        typer.Option(help="mlp of 256, or of tests/benchmarks/quality/networks.py"),
    ] = "mlp",
    split: Annotated[
        str, typer.Option(help="how the halves are dealt; shards:1 gives each its own classes")
    ] = "iid",
    annealed: bool = False,
    every: Annotated[bool, typer.Option(help="mixtures, and two that begin alike, too")] = False,
) -> None:
    """Print the table as Markdown."""
    torch.set_num_threads(1)
    fields, runs = {"data": data, "model": named(model), "split": split}, []
    for seed in range(seeds):
        halves, whole = (bench(seed, parts, epochs, annealed, **fields) for parts in (2, 1))
        runs.append(list(rows(halves, whole, every)))
    lines = []
    for same in zip(*runs, strict=True):
        fixed = [row[2] for row in same if row[2] is not None]
        lines.append([same[0][0], *cells([row[1] for row in same]), *(cells(fixed) if fixed else ["", ""])])
    markdown(("network", "accuracy", "loss", "repaired: accuracy", "loss"), lines)


if __name__ == "__main__":
    typer.run(main)
