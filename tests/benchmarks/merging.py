"""Two networks trained apart, each on its half of the data: the README's table of merging.

    python tests/benchmarks/merging.py mnist:DIR [--epochs 10] [--seeds 3] [--model mlp | deep]

Each begins from initial weights of its own and trains by SGD in batches of 32 with lr 0.1. Prints means over seeds
and standard deviations: held-out accuracy in per cent, and loss, of what can be made of the two.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from storage.rounds.commits import Score
from tasks.data.partitions import Partition, Partitions
from tasks.maps.local_steps import LocalSteps
from tasks.matching.averaging import average
from tasks.matching.groups import Tensors, UnitGroups
from tasks.matching.search.activations import activation_moments
from tasks.matching.search.evidence import By, Evidence
from tasks.matching.search.networks import match_all, match_each
from tasks.matching.units import find_units
from tasks.merging.blends import Ensemble
from tasks.merging.repair import rescale
from tasks.networks.objective import Objective
from tasks.numerics import derive_seed, pinned
from tasks.rounds.scoring import score, tally

EXAMPLES = 2000
"""Training examples of the first half on which units are compared and repaired."""

BATCH = 100


def deep(width: int = 512) -> torch.nn.Module:
    """Three hidden layers of rectified units for 28 x 28 images of ten classes."""
    sizes = [784, width, width, width]
    hidden = [m for a, b in pairwise(sizes) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Flatten(), *hidden, torch.nn.Linear(width, 10))


@dataclass(frozen=True)
class Bench:
    """A split of the data, and what is trained on it."""

    objective: Objective
    partitions: Partitions
    epochs: int

    @cached_property
    def parts(self) -> list[Partition]:
        """The examples."""
        return [self.partitions.load(0, part) for part in range(self.partitions.split.partitions)]

    def trained(self, part: int, own: bool = True) -> dict[str, torch.Tensor]:
        """A network trained on one partition, from initial weights of its own or from common ones."""
        train = LocalSteps(epochs=self.epochs, init="per-partition" if own else "shared")
        seed = derive_seed(self.partitions.split.seed, self.partitions.split.partitions, part)
        start = self.objective.initial()
        with pinned(seed, threads=1):
            update = train(self.objective, start, self.parts[part].train, {}, seed)
        params = {dtype: vector - update.direction[dtype] for dtype, vector in start.params.items()}
        return self.objective.network(replace(start, params=params, buffers=update.buffers)).state_dict()

    def network(self, state: Tensors) -> torch.nn.Module:
        """A network with these tensors."""
        network = self.objective.network(self.objective.initial()).eval()
        network.load_state_dict(state)
        return network

    def scored(self, network: torch.nn.Module) -> Score:
        """Its score on all held-out examples."""
        with torch.no_grad(), pinned(0, threads=1):
            found = score([tally(self.objective, network, part.held_out) for part in self.parts])
        assert found is not None
        return found


def bench(data: str, model: str, epochs: int, seed: int, parts: int) -> Bench:
    """What one seed trains on so many parts of the data."""
    resolved = resolve(TrainConfig(data=data, model=model, seed=seed, partitions=parts))
    assert resolved.objective is not None
    return Bench(resolved.objective, resolved.partitions, epochs)


Matches = Callable[[Evidence], list[dict[str, torch.Tensor]]]
SOFT = {"1": 1, "3": 3, "all": None}


def matchings() -> Iterator[tuple[str, By, Matches]]:
    """What is compared: permutations by each kind of evidence, and mixtures of the k most similar units."""
    for by in ("weights", "activations", "mixed"):
        yield f"merged, by {by}", by, match_all
    for by in ("weights", "activations"):
        for name, k in SOFT.items():
            yield f"soft, k = {name}, by {by}", by, lambda e, k=k: match_each(e, k, 0.1)


def repaired(here: Bench, states: list[Tensors], inputs: torch.Tensor, units: UnitGroups) -> torch.nn.Module:
    """The mean of networks with its units rescaled."""
    network = here.network(average(states, [1, 1]))
    with pinned(0, threads=1):
        rescale(network, [here.network(state) for state in states], [1, 1], inputs, units)
    return network


def rows(data: str, model: str, epochs: int, seed: int) -> Iterator[tuple[str, Score, Score | None]]:
    """What is made of two halves, its score, and where it is a mean of two, its score when repaired."""
    halves, whole = bench(data, model, epochs, seed, 2), bench(data, model, epochs, seed, 1)
    parents: list[Tensors] = [halves.trained(part) for part in range(2)]
    inputs = halves.parts[0].train.inputs[:EXAMPLES]
    units = find_units(halves.network(parents[0]), (inputs[:BATCH],))

    def both(states: list[Tensors]) -> tuple[Score, Score]:
        fixed = repaired(halves, states, inputs, units)
        return halves.scored(halves.network(average(states, [1, 1]))), halves.scored(fixed)

    for name, parent in zip(("the first alone", "the second alone"), parents, strict=True):
        yield name, halves.scored(halves.network(parent)), None
    yield "plain mean", *both(parents)
    moments = activation_moments(halves.network(parents[0]), parents, [inputs], units, [(0, 1)])
    for name, by, matches in matchings():
        with pinned(0, threads=1):
            orders = matches(Evidence(parents, units, by, None, moments))
        yield name, *both([units.permute(s, order) for s, order in zip(parents, orders, strict=True)])
    ensemble = Ensemble([halves.network(parent) for parent in parents], logits=True).eval()
    yield "ensemble of the two", halves.scored(ensemble), None
    yield "plain mean, begun alike", *both([halves.trained(part, own=False) for part in range(2)])
    yield "one network, all the data", whole.scored(whole.network(whole.trained(0))), None


def printed(values: list[float], digits: int) -> str:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def cells(scores: list[Score]) -> list[str]:
    """Accuracy and loss over seeds."""
    accuracies = [100 * s.accuracy for s in scores if s.accuracy is not None]
    return [printed(accuracies, 2), printed([s.loss for s in scores], 3)]


def main(
    data: Annotated[str, typer.Argument()],
    epochs: int = 10,
    seeds: int = 3,
    model: Annotated[Literal["mlp", "deep"], typer.Option(help="mlp of 256, or three layers of 512")] = "mlp",
) -> None:
    """Print the table as Markdown."""
    torch.set_num_threads(1)
    chosen = f"{Path(__file__).resolve()}:deep" if model == "deep" else model
    runs = [list(rows(data, chosen, epochs, seed)) for seed in range(seeds)]
    print("| network | accuracy | loss | repaired: accuracy | loss |")
    print("|" + " --- |" * 5)
    for same in zip(*runs, strict=True):
        name = same[0][0]
        fixed = [row[2] for row in same if row[2] is not None]
        columns = cells([row[1] for row in same]) + (cells(fixed) if fixed else ["", ""])
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    typer.run(main)
