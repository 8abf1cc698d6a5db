"""What robust reduces withstand and cost: the results' table of corrupted partitions.

    python -m tests.benchmarks.quality.robust mnist:DIR [--rounds 5] [--seed 0]

Eleven iid partitions of MNIST train an mlp for one local epoch a round, in batches of 32 with lr 0.1; the first
few send noise of size 1e6 in place of where they went, each its own or all the same. f is what the reduce says it
withstands. Held-out accuracies in per cent after the last round; it takes 5 minutes on one core.
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from roundweave import Examples, Map, Objective, Reduce, Run, State, TrainConfig, Update, reduce_all
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.reduces.table import find_reduce
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.numerics.pinning import derive_seed
from tests.benchmarks.rounds import show

PARTITIONS = 11
REDUCES = ("mean", "median", "trimmed_mean:4", "krum:4", "krum:4:7", "geometric_median")
COMMON: dict[str, Any] = {"partitions": PARTITIONS, "lr": 0.1, "batch_size": 32}
SIZE = 1e6


@dataclass(frozen=True)
class Corrupted(Map):
    """A map of which the first `count` partitions send noise for a direction, `alike` or each its own.

    It knows them by the seeds that it is given, which are drawn from (`run_seed`, round, partition).
    """

    honest: Map
    run_seed: int
    count: int
    alike: bool

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """What the honest map sends, or noise; one vector (elements,) per dtype."""
        update = self.honest(objective, state, examples, carry, seed)
        seeds = [derive_seed(self.run_seed, state.round + 1, partition) for partition in range(self.count)]
        if seed not in seeds:
            return update
        generator = torch.Generator().manual_seed(seeds[0] if self.alike else seed)
        drawn = {name: torch.randn(v.shape, generator=generator) for name, v in update.direction.items()}
        return replace(update, direction={name: SIZE * noise for name, noise in drawn.items()})


@dataclass(frozen=True)
class Bench:
    """What all runs have in common."""

    data: str
    rounds: int
    seed: int

    def run(self, reduce: str, count: int = 0, alike: bool = False) -> tuple[float, float]:
        """The accuracy in per cent with so many corrupted partitions, and the milliseconds that a reduce takes."""
        with tempfile.TemporaryDirectory() as root:
            own: dict[str, Any] = {"data": self.data, "rounds": self.rounds, "seed": self.seed, "reduce": reduce}
            config = TrainConfig(**COMMON, **own, evaluate_every=self.rounds, root=Path(root))
            planned, executor = plan(config), InlineExecutor()
            attacked = Corrupted(planned.algorithm.map, self.seed, count, alike)
            algorithm = replace(planned.algorithm, map=attacked)
            with prepare(replace(planned, algorithm=algorithm), executor) as ready:
                *_, last = executor.run(ready.job, 1, self.rounds)
            assert last.score is not None
            return 100 * last.score.values["accuracy"], milliseconds(Run(ready.store.path), algorithm.reduce)

    def rows(self, reduce: str) -> Iterator[list[str]]:
        """The lines of a reduce: one a kind of noise."""
        f = 0 if reduce == "mean" else getattr(find_reduce(reduce), "f", (PARTITIONS - 1) // 2)
        clean, time = self.run(reduce)
        for noise in ("its own", "the same"):
            accuracies = [clean, *(self.run(reduce, f + more, noise == "the same")[0] for more in range(3))]
            yield [reduce, f"{time:.0f}", str(f), noise, *(f"{accuracy:.2f}" for accuracy in accuracies)]


def milliseconds(run: Run, reduce: Reduce) -> float:
    """How long the reduce takes over the updates of round 1: the shortest of five times."""
    state, updates = run.round(0).state, [run.round(1).update(partition) for partition in range(PARTITIONS)]
    return 1000 * min(timeit.repeat(lambda: reduce_all(reduce, state, updates), number=1, repeat=5))


def main(data: str, rounds: int = 5, seed: int = 0) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    bench = Bench(data, rounds, seed)
    heads = ("reduce", "ms", "f", "noise", "clean", "f", "f + 1", "f + 2")
    show(heads, (row for reduce in REDUCES for row in bench.rows(reduce)))


if __name__ == "__main__":
    typer.run(main)
