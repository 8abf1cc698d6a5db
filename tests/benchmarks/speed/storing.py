"""What storing every round costs: beside rounds that keep nothing, and against writing the same bytes.

    python -m tests.benchmarks.speed.storing [mnist:DIR] [--rounds 6] [--repeats 3]

Two kinds of rounds, in one process, stored and not stored in turn: federated averaging of an mlp over ten
partitions, a local epoch a round in batches of 32; and a network of 50 MB over four partitions whose rounds take
about a second. Not a test: it asserts nothing. It prints medians over the repeats.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from roundweave.storage.rounds.pruned import Pruned
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import load_block
from roundweave.tasks.rounds.steps import score_block
from tests.benchmarks.quality.runs import pure_rounds
from tests.benchmarks.rounds import begun, idle, run, seconds, show

ELEMENTS = 12_500_000
"""Of float32: 50 MB."""

SECONDS = 0.25
"""What a map of the wide network takes: a round of four takes a second."""

NAMES = ("not stored", "stored", "written", "bytes on disk / of tensors")


def not_stored(job: Job, rounds: int) -> None:
    """The same rounds by the pure steps alone: nothing is digested or written."""
    loaded = load_block(replace(job, blocks=1), 1, 0)
    for outcome in pure_rounds(job, loaded, rounds):
        score_block(job.work, outcome.state, {partition: each.scored for partition, each in loaded.items()})


def measured(fields: dict[str, Any], rounds: int) -> Iterator[float]:
    """Seconds a round: not stored, stored, and what writing the files that came of it takes; ratios of bytes."""
    with tempfile.TemporaryDirectory() as root:
        executor = InlineExecutor()
        with begun(executor, **fields | {"rounds": rounds, "root": root, "name": "run"}) as ready:
            before = {path for path in Path(root).rglob("*") if path.is_file()}
            yield seconds(lambda: not_stored(ready.job, rounds)) / rounds
            yield seconds(lambda: run(executor, ready, 1, rounds)) / rounds
            written = [path for path in Path(root).rglob("*") if path.is_file() and path not in before]
            tensors = ready.store.tensors
            # The initial state was there before.
            raw = tensors.kept_bytes(rounds, Pruned()) - tensors.schema.stored_bytes(1, 0)
        contents = [path.read_bytes() for path in written]
        with tempfile.TemporaryDirectory(dir=root) as copy:
            yield seconds(lambda: write_again(Path(copy), contents)) / rounds
        yield sum(map(len, contents)) / raw


def write_again(folder: Path, contents: list[bytes]) -> None:
    """The same bytes by open, write and rename."""
    for number, content in enumerate(contents):
        with (folder / "partial").open("wb", buffering=0) as file:
            file.write(content)
        (folder / "partial").replace(folder / str(number))


def main(source: Annotated[str, typer.Argument()] = "digits", rounds: int = 6, repeats: int = 3) -> None:
    """Measure and print."""
    recipe = {"data": source, "partitions": 10, "local_epochs": 1, "batch_size": 32, "lr": 0.1}
    wide, lines = idle(4, rounds, ELEMENTS, taking=SECONDS, busy=True), []
    for kind, fields in {"the recipe": recipe, "50 MB": wide}.items():
        every = [list(measured(fields, rounds)) for _ in range(repeats)]
        middle = [f"{statistics.median(column):.4f}" for column in zip(*every, strict=True)]
        ratio = statistics.median(stored / plain for plain, stored, _, _ in every)
        cost = statistics.median((stored - plain) / written for plain, stored, written, _ in every)
        lines.append([kind, *middle, f"{ratio:.3f}", f"{cost:.2f}"])
    show(("rounds", *NAMES, "stored / not", "storing / writing"), lines)


if __name__ == "__main__":
    typer.run(main)
