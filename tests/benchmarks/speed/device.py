"""Examples a second on a device, beside a plain loop in torch on it, and whether a run replays to the bit there.

    python -m tests.benchmarks.speed.device DATA [--device cuda] [--rounds 6] [--cases recipe,cnn,gpt2]

DATA is a folder with `fashion` (IDX files) and `text/tinyshakespeare.txt`. Not a test: it asserts nothing. Rounds
are of two partitions, everything stored, in this process and on workers; a round is scored at the end of the run.
The plain loop takes as many steps of the same batches' size, with its examples on the device and torch's own
optimizer. A line is printed for each case and precision as soon as it is known.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import roundweave as rw
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.networks.objective import CASTS
from tests.benchmarks.peers.recipes import pace
from tests.training import trained

PARTITIONS = 2
TIMES = 2
"""A plain loop is timed so often, and the better time counts, as the first has what is done once."""
GPT2 = f"{Path(__file__).parent / 'gpt2.py'}:Gpt2"


@dataclass(frozen=True)
class Case:
    """What is trained: fields of a configuration, and how many units such as tokens an example is."""

    fields: dict[str, Any]
    local_steps: int
    batch_size: int
    units: int = 1
    precisions: tuple[str, ...] = ("float32", "bf16")


def cases(data: Path) -> dict[str, Case]:
    """The cases by name."""
    fashion, text = f"fashion-mnist:{data / 'fashion'}", f"text:{data / 'text/tinyshakespeare.txt'}:256"
    wide = {"model": "cnn", "model_options": {"channels": 128}}
    return {
        "recipe": Case({"data": fashion, "model": "mlp"}, 1000, 128, precisions=("float32",)),
        "cnn": Case({"data": fashion, "model": "cnn"}, 500, 256),
        "wide cnn": Case({"data": fashion} | wide, 200, 256),
        "gpt2": Case({"data": text, "model": GPT2}, 200, 8, units=256),
    }


def plain(case: Case, fields: dict[str, Any], device: torch.device, deterministic: bool) -> float:
    """Seconds of as many steps as a round has."""
    described = describe(plan(rw.TrainConfig(**fields)), gather_here)
    objective, lower = described.objective, CASTS.get(fields["precision"])
    examples = described.partitions.load(0, 0).on(lambda tensor: tensor.to(device))
    network = objective.network(objective.initial()).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    steps, seconds = PARTITIONS * case.local_steps, []
    torch.use_deterministic_algorithms(deterministic)
    for _ in range(TIMES):
        began = time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(len(examples), (case.batch_size,), device=device)
            with torch.autocast(device.type, lower, enabled=lower is not None):
                outputs = network(examples.inputs[rows])
                targets = examples.targets[rows]
                loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - began)
    torch.use_deterministic_algorithms(False)
    return min(seconds)


def ours(fields: dict[str, Any], root: Path, executor: Executor, replayed: bool) -> tuple[float, str]:
    """Seconds a round, and the digest of the last state or what is wrong with it.

    The last round does not count, as no other is mapped beside its commit.
    """
    moments: list[float] = []

    def committed(commit: object) -> None:
        moments.append(time.perf_counter())

    run = trained(root, executor, window=fields["rounds"], on_commit=committed, **fields)
    identical = not replayed or run.replay("last").identical
    return pace(moments[:-1]), run.digest[:12] if identical else "not replayed"


def compare(name: str, case: Case, fields: dict[str, Any]) -> None:
    """Print examples or tokens a second of the plain loop, of rounds in this process, and of two workers."""
    units = PARTITIONS * case.local_steps * case.batch_size * case.units
    device, tell = torch.device(fields["device"]), partial(print, flush=True)
    best, same = (plain(case, fields, device, deterministic) for deterministic in (False, True))
    tell(f"{name}: plain {units / best:,.0f}/s, by deterministic algorithms {best / same:.2f} of it")
    with tempfile.TemporaryDirectory() as folder, connect(None, workers=2) as client:
        os.environ["ROUNDWEAVE_ROOT"] = folder  # so that a replay trusts the code that is kept there
        executors: dict[str, Executor] = {"inline": InlineExecutor(), "graph": GraphExecutor(client)}
        for where, executor in executors.items():
            seconds, digest = ours(fields, Path(folder), executor, replayed=where == "inline")
            ratio = f"{best / seconds:.2f} of plain, {seconds:.2f} s a round"
            tell(f"  {where} {units / seconds:,.0f}/s, {ratio}, {digest}")


def main(
    data: Path,
    device: Annotated[str, typer.Option(help="A device of torch.")] = "cuda",
    rounds: Annotated[int, typer.Option(help="So many rounds; the first and the last do not count.")] = 6,
    only: Annotated[str, typer.Option("--cases", help="Some of the cases, with commas.")] = "",
) -> None:
    """Print a line for each case, precision and executor."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    named = cases(data)
    for name in only.split(",") if only else named:
        case = named[name]
        for precision in case.precisions:
            fields = case.fields | {"device": device, "rounds": rounds, "evaluate_every": rounds, "lr": 0.01}
            fields |= {"precision": precision, "partitions": PARTITIONS, "seed": 0, "keep": "all"}
            fields |= {"local_steps": case.local_steps, "batch_size": case.batch_size}
            compare(f"{name} {precision}", case, fields)


if __name__ == "__main__":
    sys.exit(typer.run(main))
