"""Runs random configurations by the project and by plain loops, and compares every round."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from roundweave import Examples, RoundweaveError, Run, TrainConfig, batches, open_run
from roundweave.flows.planning.describing import describe
from roundweave.flows.planning.plan import plan
from roundweave.storage.values.digests import tensor_digest
from roundweave.tasks.data.description import gather_here
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.networks.start import find_fork
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.rounds.job import asked_of
from tests.comparison import loops, training
from tests.comparison.drawing import ASYNCHRONOUS, as_line, draw
from tests.comparison.setting import Row, Rows, Task, build, counted, losses, scores
from tests.training import trained

COUNT = 500
"""How many configurations are compared."""

CROSSED_COUNT = 300
"""How many are crossed with what a run begins with, validates by, sends, keeps and draws."""

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


def given_of(
    task: Task, config: TrainConfig, run: Run, begun: training.State | None = None
) -> tuple[training.Given, Rows]:
    """What the plain loop is given: seeds, orders and splits as the project defines them."""
    described = describe(plan(config), gather_here)
    partitions, fields = described.partitions, described.plan.config
    algorithm = fields.algorithm
    rows, seed, name = Rows(task, partitions), fields.seed, task.drawn["algorithm"]["name"]
    name = getattr(name, "__name__", name)

    def order(examples: int, size: int | None, steps: int, drawn: int) -> list[list[int]]:
        places = torch.arange(examples)
        return [batch.inputs.tolist() for batch in batches(Examples(places, places), size, steps, drawn)]

    return training.Given(
        algorithm=name,
        options={**DEFAULTS, **algorithm.options, "apply": algorithm.parts.get("apply") or APPLIES.get(name)},
        reduce=algorithm.parts.get("reduce") or REDUCES.get(name, "mean"),
        topology=fields.topology,
        rounds=fields.rounds,
        partitions=fields.partitions,
        build=lambda of: build(task, seed if of is None else of),
        loss=lambda outputs, targets: losses(task, outputs, targets).mean(),
        counted=lambda targets: counted(task, targets),
        call=lambda network, inputs: network(**inputs) if isinstance(inputs, dict) else network(inputs),
        batch=rows.batch,
        rows=rows.of,
        prepared=lambda chosen, seed, number: rows.prepared(chosen, derive_seed(seed, "batch", number)),
        judged=rows.judged,
        batches=order,
        seed=lambda number, partition: derive_seed(seed, number, partition),
        cohort=lambda round: asked_of(partitions, seed, round) or range(fields.partitions),
        arrivals=arrivals_of(run) if name in ASYNCHRONOUS else (),
        compress=fields.compress,
        begun=begun,
    ), rows


def arrivals_of(run: Run) -> list[list[tuple[int, int, int]]]:
    """The pushes (partition, push, version) of each round of a server, in the order in which they arrived."""
    updates = [run.round(round).commit.updates for round in range(1, run.done + 1)]
    return [[(p, u.arrival.push, u.arrival.version) for p, u in of.items() if u.arrival] for of in updates]


DEFAULTS = {"lr_schedule": "constant", "warmup": 0, "accumulate": 1}
"""Options that an algorithm of one's own may not have."""

APPLIES = {"fed_yogi": "yogi"}
REDUCES = {"scaffold": "plain_mean", "fed_dyn": "plain_mean", "fed_buff": "plain_mean", "matched": "matched"}
"""The outer optimizers and the reduces of algorithms that have others than most."""


def expected(task: Task, given: training.Given, rows: Rows) -> Iterable[Numbers]:
    """All numbers of each round by name, from the plain loop."""
    for round, state in enumerate(loops.run(given)):
        network = training.network_of(given, state.params, state.buffers).eval()
        numbers = {f"tensor {name}": tensor for name, tensor in network.state_dict().items()}
        values = {f"train_loss {p}": loss for p, loss in state.train_loss.items()} if round else {}
        values |= scored(task, given, rows, network, round, state)
        numbers |= {name: number(value) for name, value in values.items() if math.isfinite(value)}
        yield numbers


@torch.no_grad()
def scored(
    task: Task, given: training.Given, rows: Rows, network: nn.Module, round: int, state: training.State
) -> dict[str, float]:
    """The scores of a round, and but for round 0 those of partitions on examples of their own."""

    def of(chosen: Iterable[Row], judged: nn.Module) -> dict[str, float]:
        inputs, targets = rows.batch(rows.judged(chosen))
        if task.drawn["network"] != "drawing":
            return scores(task, given.call(judged, inputs), targets)
        outputs = []
        for part in inputs.split([len(each) for each in rows.scored(chosen)]):
            torch.manual_seed(derive_seed("score", tensor_digest("", part[:1])))
            outputs.append(judged(part))
        return scores(task, torch.cat(outputs), targets)

    first = given.cohort(0 if given.arrivals else 1)
    cohort = list(state.train_loss) if round and not given.arrivals else first
    common = of(rows.held_out(cohort), network)
    if count := task.drawn.get("validation"):
        validated = of([(2, 0, row) for row in range(count)], network)
        common |= {f"validation_{name}": value for name, value in validated.items()}
    if round and task.drawn.get("score_partitions"):
        each = {}
        for p in cohort:
            judged = training.network_of(given, state.own.get(p, state.params), state.buffers).eval()
            if chosen := rows.of(round, p, own=True):
                each[p] = of(chosen, judged)
        each = {p: row for p, row in each.items() if math.isfinite(row["loss"])}
        each = {p: {name: v for name, v in row.items() if math.isfinite(v)} for p, row in each.items()}
        common |= loops.of_partitions(each) if each else {}
        told = state.train_loss.keys() & each.keys()  # the others push in another round of a server
        common |= {f"own_{name} {p}": value for p in told for name, value in each[p].items()}
    return {name if name.startswith("own_") else f"score {name}": value for name, value in common.items()}


def found_in(run: Run, round: int) -> Numbers:
    """The same numbers of a round as the project stored them."""
    stored = run.round(round)
    numbers = {f"tensor {name}": tensor for name, tensor in stored.tensors.items()}
    assert stored.score is not None
    values = {f"score {name}": value for name, value in stored.score.row().items() if name != "examples"}
    for partition, update in stored.commit.updates.items():
        names = [name for name in update.metrics if name.startswith(("train_loss", "own_"))]
        # `own_examples` is a count, as that of the score.
        values |= {f"{name} {partition}": update.metrics[name] for name in names if name != "own_examples"}
    return numbers | {name: number(value) for name, value in values.items() if math.isfinite(value)}


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


def begun(task: Task, root: Path, name: str) -> tuple[dict[str, Any], training.State | None]:
    """What a run is to begin with, as fields of its configuration, and the state that a plain loop begins with."""
    if not task.drawn.get("begin"):
        return {}, None
    how, at, rounds = task.drawn["begin"]
    parent, place = Task({**task.drawn, "rounds": rounds, "begin": None}), f"{name}-parent@{at}"
    run = trained(root, name=f"{name}-parent", **parent.fields())
    config = TrainConfig(root=root, executor="inline", name=f"{name}-again", **parent.fields())
    states = loops.run(given_of(parent, config, run)[0])
    state = next(itertools.islice(states, at, None))
    if how == "file":
        torch.save(run.round(at).tensors, place := str(root / f"{name}.pt"))
    alone = training.State(state.params, state.buffers)
    if not how.startswith("fork"):
        return {"start_from": place}, alone
    if how == "fork":
        return {"start_from": find_fork(run, at, open_run)}, replace(state, train_loss={}, own={})
    alone.memory = {slot: of for slot, of in state.memory.items() if slot not in ("control", "h")}
    return {"start_from": find_fork(run, at, open_run), "split_seed": task.drawn["seed"] + 1}, alone


def compare(which: int, root: Path, executor: Executor | None = None, crossed: bool = False) -> Result:
    """Run the configuration of a number in both ways; one that is refused is drawn again."""
    for attempt in range(ATTEMPTS):
        drawn = draw(which, attempt, crossed)
        named = drawn.get("begin") and drawn["begin"][0] != "file"
        task, name = Task(drawn, moved=2 if named else 0), f"c{which}-{attempt}"
        result = Result(which, as_line(drawn))
        with patch.dict(os.environ, ROUNDWEAVE_ROOT=str(root)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                start, state = begun(task, root, name)
                fields = task.fields() | start
                run = trained(root, executor, name=name, **fields)
            except RoundweaveError:
                continue
            config = TrainConfig(root=root, executor="inline", name=f"{name}-plain", **fields)
            _compare_rounds(result, task, run, *given_of(task, config, run, state))
            return result
    return Result(which, "", error=f"refused {ATTEMPTS} times")


def _compare_rounds(result: Result, task: Task, run: Run, given: training.Given, rows: Rows) -> None:
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
