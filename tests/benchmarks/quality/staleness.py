"""What staleness costs in accuracy: the results' two tables of a parameter server on MNIST.

    python -m tests.benchmarks.quality.staleness [mnist:DIR] [--examples 60000] [--seed 0]

An mlp, batches of 32; updates arrive in the seeded order. The first table has Downpour with push = fetch = 1
beside synchronous SGD after the same number of examples, on as many partitions: a synchronous round has a batch
of each, and on one partition it is one machine. Each takes the best of a few learning rates, on the test images
as all that is printed. The second has Downpour with its defaults after a third of the examples: how often it
fetches, and what becomes of stale updates. Rounds are not stored. Not a test: it asserts nothing. Without an
address, the examples are those in $ROUNDWEAVE_DATA.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer

from roundweave.flows.plugins.parameter_server.arrivals import OrderedServer
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.tasks.data.loading import Partition
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import score_outcome
from roundweave.tasks.rounds.persistence.mapping import load_block
from roundweave.tasks.rounds.scoring import score
from roundweave.tasks.rounds.steps import Outcome
from tests.benchmarks.quality.runs import pure_rounds
from tests.benchmarks.rounds import begun, default_data, show

BATCH = 32
SERVED, WAITED = "downpour", "sync_sgd"
RATES = {SERVED: ("outer_lr", (0.02, 0.04, 0.08)), WAITED: ("lr", (0.1, 0.2, 0.4, 0.8))}
BOUNDS: dict[str, dict[str, Any]] = {
    "take all": {},
    "drop beyond 4": {"max_staleness": 4, "stale": "drop"},
    "scale": {"stale": "scale"},
    "drop beyond 8": {"max_staleness": 8, "stale": "drop"},
}
SPEEDS = {"4": [1.0] * 4, "4, one ten times as slow": [1.0, 1.0, 1.0, 0.1], "8": [1.0] * 8}


@dataclass(frozen=True)
class Ran:
    """Accuracy in per cent, and of the updates how stale they are and which share was refused."""

    accuracy: float
    stalenesses: list[int]
    refused: float


@dataclass(frozen=True)
class Bench:
    """What all runs have in common."""

    data: str
    seed: int

    def run(self, examples: int, algorithm: str, partitions: int, **options: Any) -> Ran:
        """Train on so many examples."""
        updates = examples // BATCH
        rounds = updates // partitions if algorithm == WAITED else updates
        fields = {"data": self.data, "seed": self.seed, "algorithm": algorithm, "partitions": partitions}
        fields |= {"batch_size": BATCH, "rounds": rounds, "executor": "inline"}
        with begun(InlineExecutor(), **fields, **options) as ready:
            work, data, records = ready.job.work, load_block(ready.job, 0, 0), list[UpdateRecord]()
            waited = pure_rounds(ready.job, data, rounds)
            for outcome in waited if algorithm == WAITED else served(ready.job, data, rounds):
                records += outcome.records.values()
            scored = score(work.objective, score_outcome(ready.job, outcome, data), work.threads)
        assert scored is not None
        stalenesses = [record.arrival.staleness for record in records if record.arrival]
        refused = sum(record.refused is not None for record in records) / len(records)
        return Ran(100 * scored.values["accuracy"], stalenesses, refused)

    def compared(self, examples: int) -> Iterator[list[str]]:
        """The lines of the first table."""
        for algorithm, partitions in [(WAITED, 1), *((a, p) for p in (2, 4, 8) for a in (WAITED, SERVED))]:
            name, rates = RATES[algorithm]
            found = {rate: self.run(examples, algorithm, partitions, **{name: rate}).accuracy for rate in rates}
            rate = max(found, key=lambda rate: found[rate])
            every = ", ".join(f"{accuracy:.2f}" for accuracy in found.values())
            yield [str(partitions), algorithm, f"{found[rate]:.2f}", f"{name} {rate:g}", every]

    def stale(self, examples: int) -> Iterator[list[str]]:
        """The lines of the second table."""
        for (bound, options), (name, speeds) in itertools.product(BOUNDS.items(), SPEEDS.items()):
            for fetch_every in (1, 4, 16):
                own = {**options, "fetch_every": fetch_every, "speeds": speeds}
                ran = self.run(examples, SERVED, len(speeds), **own)
                mean = sum(ran.stalenesses) / len(ran.stalenesses)
                numbers = [f"{mean:.1f}", str(max(ran.stalenesses)), f"{100 * ran.refused:.0f}"]
                yield [bound, name, str(fetch_every), *numbers, f"{ran.accuracy:.2f}"]


def served(job: Job, data: Mapping[int, Partition], rounds: int) -> Iterator[Outcome]:
    """The outcomes of a parameter server's rounds."""
    return (served.outcomes[0] for served in OrderedServer(job, 0).rounds(data, rounds))


def main(data: Annotated[str | None, typer.Argument()] = None, examples: int = 60_000, seed: int = 0) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    bench = Bench(data or default_data() or "digits", seed)
    show(("partitions", "algorithm", "accuracy", "rate", "with each rate"), bench.compared(examples))
    heads = ("stale updates", "partitions", "fetch every", "mean staleness", "largest", "refused %", "accuracy")
    show(heads, bench.stale(examples // 3))


if __name__ == "__main__":
    typer.run(main)
