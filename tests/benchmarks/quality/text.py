"""A small decoder learns Shakespeare from 36 roles that keep their lines: the results' part on text.

    python -m tests.benchmarks.quality.text FILE.json [--rounds 20] [--root DIR]

FILE.json holds {role: text}. Each of the roles with the most text is a partition and trains for one local epoch a
round with AdamW in batches of 16; it takes 4 minutes on one core. Losses are in nats a character, beside the
entropies of the training characters alone and given the one before. The run is kept under the root; a second start
opens it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

import roundweave as rw
from roundweave.flows.planning.describing import Described, describe
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import prepare
from roundweave.storage.runs.names import default_root
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.networks.reference import Gpt
from tests.benchmarks.rounds import show

NAME = "shakespeare"
PARTITIONS = 36
TIME = 64
ROOT = Path(default_root())
NETWORK = {"width": 64, "depth": 2, "heads": 4}
OPTIONS: dict[str, Any] = {"optimizer": "AdamW", "lr": 3e-3, "batch_size": 16}


def configured(file: Path, rounds: int, root: Path) -> Described:
    """The run."""
    dealt = {"data": f"text:{file}:{TIME}", "split": "largest:role", "partitions": PARTITIONS}
    network = {"model": "gpt", "model_options": NETWORK}
    return describe(
        plan(rw.TrainConfig(**dealt, **network, **OPTIONS, rounds=rounds, name=NAME, root=root)), gather_here
    )


def entropies(partitions: rw.Partitions) -> tuple[float, float]:
    """Entropies in nats of a training character, alone and given the one before."""
    parts = [partitions.load(0, partition) for partition in range(PARTITIONS)]
    before, after = (torch.cat([getattr(p, half).flatten() for p in parts]) for half in ("inputs", "targets"))
    classes = int(torch.cat([before, after]).max()) + 1
    pairs = torch.bincount(before * classes + after, minlength=classes**2).double()
    joint, first = entropy(pairs), entropy(pairs.view(classes, classes).sum(1))
    return entropy(pairs.view(classes, classes).sum(0)), joint - first


def entropy(counts: torch.Tensor) -> float:
    """The entropy in nats of frequencies (kinds,)."""
    shares = counts / counts.sum()
    return float(torch.special.entr(shares).sum())


def generate(network: torch.nn.Module, characters: str, length: int, seed: int) -> str:
    """So many characters after a new line, each drawn from what the network expects."""
    generator = torch.Generator().manual_seed(seed)
    codes = [characters.index("\n")]
    with torch.no_grad():
        for _ in range(length):
            logits = network(torch.tensor([codes[-TIME:]]))[0, -1]
            codes.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
    return "".join(characters[code] for code in codes[1:])


def look(console: Console, root: Path, characters: str) -> None:
    """Open the run's rounds as a notebook would."""
    run = rw.open_run(NAME, root)
    console.print(run, highlight=False)
    every = max(1, run.done // 5)
    console.print(run.history()[["loss", "token_accuracy", "train_loss"]].iloc[every::every].round(3))
    for number in (1, run.done):
        apart = run.round(number).updates["head.weight"]  # (partition, character, width)
        spread, common = apart.std("partition").mean().item(), abs(apart.mean("partition")).mean().item()
        console.print(f"round {number}: deviation over partitions {spread:.4f}, size of the mean {common:.4f}")
    network = run.round(-1).load_into(Gpt((TIME,), len(characters), **NETWORK))
    console.print(generate(network.eval(), characters, 200, seed=0), highlight=False, markup=False)


def main(file: Path, rounds: int = 20, root: Path = ROOT) -> None:
    """Train, or open what was trained, and print what became of it."""
    torch.set_num_threads(1)
    console, executor = Console(), InlineExecutor()
    described = configured(file, rounds, root)
    with prepare(described.plan, executor, described) as ready, console.status("training"):
        for commit in executor.run(ready.job, ready.done + 1, rounds):
            console.print(f"round {commit.round} after {commit.seconds:.0f} s")
    history = rw.open_run(NAME, root).history()
    alone, given = entropies(described.partitions)
    rows = {"entropy of a character": alone, "entropy given the one before": given}
    rows |= {f"held-out loss after {rounds} rounds": history["loss"].iloc[-1]}
    show(("nats a character", ""), [(name, f"{number:.3f}") for name, number in rows.items()])
    look(console, root, "".join(sorted(set("".join(json.loads(file.read_text()).values())))))


if __name__ == "__main__":
    typer.run(main)
