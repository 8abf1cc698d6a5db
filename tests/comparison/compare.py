"""Runs random configurations by the project and by plain loops, and compares every round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from roundweave import Examples, RoundweaveError, Run, TrainConfig, batches
from roundweave.flows.config.resolving import resolve
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.numerics.pinning import derive_seed
from tests.comparison import loops, training
from tests.comparison.drawing import ASYNCHRONOUS, as_line, draw
from tests.comparison.setting import Row, Rows, Task, build, counted, losses, output, scores
from tests.training import trained

COUNT = 500
"""How many configurations are compared."""

TOLERANCE = 1e-8
"""The most that a number x may be off, in units of max(1, |x|)."""

ATTEMPTS = 30
"""How often a number is drawn again whose configuration is refused."""


Numbers = Mapping[str, torch.Tensor]
"""All that is compared of a round, by name."""


@dataclass
class Result:
    """The largest difference that a comparison found, or the error."""

    number: int
    line: str
    difference: float = 0.0
    where: str = ""
    error: str = ""

    @property
    def agrees(self) -> bool:
        return not self.error and self.difference <= TOLERANCE

    def __str__(self) -> str:
        what = self.error or f"{self.difference:.3g} off in {self.where}"
        return f"number {self.number}: {what}: {self.line}"


def given_of(task: Task, config: TrainConfig, run: Run) -> tuple[training.Given, Rows]:
    """What the plain loop is given: seeds, orders and splits as the project defines them."""
    resolved = resolve(config)
    partitions, fields, algorithm = resolved.partitions, resolved.config, resolved.config.algorithm
    rows, seed, name = Rows(task, partitions), fields.seed, task.drawn["algorithm"]["name"]

    def order(examples: int, size: int | None, steps: int, drawn: int) -> list[list[int]]:
        places = torch.arange(examples)
        return [batch.inputs.tolist() for batch in batches(Examples(places, places), size, steps, drawn)]

    return training.Given(
        algorithm=name,
        options={**algorithm.options, "apply": algorithm.parts.get("apply") or APPLIES.get(name)},
        reduce=algorithm.parts.get("reduce") or REDUCES.get(name, "mean"),
        topology=fields.topology,
        rounds=fields.rounds,
        partitions=fields.partitions,
        build=lambda of: build(task, seed if of is None else of),
        loss=lambda outputs, targets: losses(task, outputs, targets).mean(),
        counted=lambda targets: counted(task, targets),
        call=lambda network, inputs: output(network(**inputs) if isinstance(inputs, dict) else network(inputs)),
        batch=rows.batch,
        rows=rows.of,
        batches=order,
        seed=lambda number, partition: derive_seed(seed, number, partition),
        cohort=lambda round: partitions.cohort_of(round) or range(fields.partitions),
        arrivals=arrivals_of(run) if name in ASYNCHRONOUS else (),
    ), rows


def arrivals_of(run: Run) -> list[list[tuple[int, int, int]]]:
    """The pushes (partition, push, version) of each round of a server, in the order in which they arrived."""
    updates = [run.round(round).commit.updates for round in range(1, run.done + 1)]
    return [[(p, u.arrival.push, u.arrival.version) for p, u in of.items() if u.arrival] for of in updates]


APPLIES = {"fed_yogi": "yogi"}
REDUCES = {"scaffold": "plain_mean", "fed_dyn": "plain_mean", "fed_buff": "plain_mean", "matched": "matched"}
"""The outer optimizers and the reduces of algorithms that have others than most."""


def expected(task: Task, given: training.Given, rows: Rows) -> Iterable[Numbers]:
    """All numbers of each round by name, from the plain loop; round 0 has tensors only."""
    for round, state in enumerate(loops.run(given)):
        network = training.network_of(given, state.params, state.buffers).eval()
        numbers = {f"tensor {name}": tensor for name, tensor in network.state_dict().items()}
        if round:
            values = {f"train_loss {p}": loss for p, loss in state.train_loss.items()}
            values |= scored(task, given, rows, network, round, state)
            numbers |= {name: number(value) for name, value in values.items() if math.isfinite(value)}
        yield numbers


@torch.no_grad()
def scored(
    task: Task, given: training.Given, rows: Rows, network: nn.Module, round: int, state: training.State
) -> dict[str, float]:
    """The scores of a round, and those of partitions on examples of their own."""

    def of(chosen: Iterable[Row], judged: nn.Module) -> dict[str, float]:
        inputs, targets = rows.batch(chosen)
        return scores(task, given.call(judged, inputs), targets)

    cohort = given.cohort(0) if given.arrivals else list(state.train_loss)
    common = of(rows.held_out(cohort), network)
    if task.drawn.get("score_partitions"):
        each = {}
        for p in cohort:
            judged = training.network_of(given, state.own.get(p, state.params), state.buffers).eval()
            if chosen := rows.of(round, p, own=True):
                each[p] = of(chosen, judged)
        each = {p: row for p, row in each.items() if math.isfinite(row["loss"])}
        common |= loops.of_partitions(each) if each else {}
        told = state.train_loss.keys() & each.keys()  # the others push in another round of a server
        common |= {f"own_{name} {p}": value for p in told for name, value in each[p].items()}
    return {name if name.startswith("own_") else f"score {name}": value for name, value in common.items()}


def found_in(run: Run, round: int) -> Numbers:
    """The same numbers of a round as the project stored them."""
    stored = run.round(round)
    numbers = {f"tensor {name}": tensor for name, tensor in stored.tensors.items()}
    if round:
        assert stored.score is not None
        values = {f"score {name}": value for name, value in stored.score.row().items() if name != "examples"}
        for partition, update in stored.commit.updates.items():
            names = [name for name in update.metrics if name.startswith(("train_loss", "own_"))]
            # `own_examples` is a count, as that of the score.
            values |= {f"{name} {partition}": update.metrics[name] for name in names if name != "own_examples"}
        numbers |= {name: number(value) for name, value in values.items() if math.isfinite(value)}
    return numbers


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def farthest(wanted: Numbers, found: Numbers) -> tuple[float, str]:
    """The largest difference of two rounds' numbers, in units of max(1, |x|), and where it is."""
    if wanted.keys() != found.keys():
        return math.inf, f"numbers that one has alone: {sorted(wanted.keys() ^ found.keys())}"
    differences = {name: difference(tensor, found[name]) for name, tensor in wanted.items()}
    name = max(differences, key=lambda name: differences[name])
    return differences[name], name


def difference(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """The largest difference of two tensors; infinite for other dtypes or shapes, and for other integers."""
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        return math.inf
    off = (wanted.double() - found.double()).abs() / wanted.double().abs().clamp(min=1)
    off = off.masked_fill(wanted == found, 0).nan_to_num(nan=math.inf)
    largest = off.max().item() if off.numel() else 0.0
    return largest if wanted.is_floating_point() or not largest else math.inf


def compare(which: int, root: Path, executor: Executor | None = None) -> Result:
    """Run the configuration of a number in both ways; one that is refused is drawn again."""
    result = Result(which, "", error=f"refused {ATTEMPTS} times")
    for attempt in range(ATTEMPTS):
        drawn = draw(which, attempt)
        task, name = Task(drawn), f"c{which}-{attempt}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run = trained(root, executor, name=name, **task.fields())
            except RoundweaveError:
                continue
        config = TrainConfig(root=root, executor="inline", name=f"{name}-plain", **task.fields())
        result = Result(which, as_line(drawn))
        _compare_rounds(result, task, config, run)
        break
    return result


def _compare_rounds(result: Result, task: Task, config: TrainConfig, run: Run) -> None:
    given, rows = given_of(task, config, run)
    for round, wanted in enumerate(expected(task, given, rows)):
        difference, where = farthest(wanted, found_in(run, round))
        if difference > result.difference:
            result.difference, result.where = difference, f"round {round}, {where}"
        if difference > TOLERANCE:
            return
    if round != run.done:
        result.error = f"the plain loop has {round} rounds, the project {run.done}"


def summary(results: list[Result]) -> str:
    """How many configurations there were, how many agree, and each that disagrees."""
    wrong = [result for result in results if not result.agrees]
    count = f"{len(results)} configurations, {len(results) - len(wrong)} agree to {TOLERANCE:g}"
    return "\n".join([count, *(f"disagrees: {result}" for result in wrong)])
