"""Runs random configurations by the project and by plain loops, and compares every round.

`python -m tests.comparison.compare` runs all, and with numbers after it those configurations alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.stored import Run
from storage.errors import RoundweaveError
from tasks.data.examples import Examples
from tasks.data.partitions import Partitions
from tasks.maps.backprop import batches
from tasks.numerics.pinning import derive_seed
from tests.comparison import drawing, loops, training
from tests.comparison import given as own
from tests.comparison.drawing import ASYNCHRONOUS, NETWORKS, WIDTHS, as_line, draw
from tests.training import trained

COUNT = 400
"""How many configurations are compared."""

TOLERANCE = 1e-8
"""The most that a number x may be off, in units of max(1, |x|)."""

ATTEMPTS = 30
"""How often a number is drawn again whose configuration is refused."""


@dataclass
class Result:
    """What a comparison found: the largest difference and where, or the error; and why earlier draws were refused."""

    number: int
    line: str
    difference: float = 0.0
    where: str = ""
    error: str = ""
    refusals: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not self.error and self.difference <= TOLERANCE

    def __str__(self) -> str:
        what = self.error or f"{self.difference:.3g} off in {self.where}"
        return f"number {self.number}: {what}: {self.line}"


@dataclass
class Task:
    """A drawn configuration with the user's functions made of it."""

    drawn: Mapping[str, Any]

    @property
    def kind(self) -> drawing.Kind:
        return NETWORKS[self.drawn["network"]]

    @property
    def named(self) -> dict[str, Any]:
        """The options of the network, which the project is given, too, if it is no built-in one."""
        width = {"outputs": WIDTHS[self.drawn["targets"]]} if self.drawn["targets"] in WIDTHS else {}
        return {**width, **self.drawn["options"]}

    def examples(self, part: int, count: int) -> tuple[Any, Any]:
        return own.examples(self.kind.inputs, self.drawn["targets"], count, 1000 * self.drawn["seed"] + part)

    def part(self, partition: int | None, held_out: bool) -> tuple[Any, Any]:
        """All examples, or those that one partition brings; or those that are held out."""
        size = 12 + 3 * (partition or 0) if self.drawn["held"] == "apart" else self.drawn["examples"]
        return self.examples(2 * (partition or 0) + held_out, 5 + (partition or 0) if held_out else size)

    def data(self) -> Callable[..., Any]:
        """The function that gives the project its examples."""

        def form(pair: tuple[Any, Any]) -> Any:
            return own.Rows(*pair) if self.kind.inputs == "ragged" else pair

        def whole() -> Any:
            train = form(self.part(None, False))
            return train if self.drawn["held"] == "drawn" else (train, form(self.part(None, True)))

        def apart(partition: int, partitions: int) -> Any:
            return form(self.part(partition, False)), form(self.part(partition, True))

        return apart if self.drawn["held"] == "apart" else whole

    def fields(self) -> dict[str, Any]:
        """The fields of the `TrainConfig`."""
        names = ("network", "targets", "options", "examples", "held")
        fields = {key: value for key, value in self.drawn.items() if key not in names and value is not None}
        model = self.kind.built_in or self.kind.plain
        options = self.drawn["options"] if self.kind.built_in else self.named
        ragged = {"collate": own.padded} if self.kind.inputs == "ragged" else {}
        common = {"dtype": "float64", "evaluate_every": 1, "keep": "all"}
        return fields | common | ragged | {"data": self.data(), "model": model, "model_options": options}


def build(task: Task, seed: int) -> nn.Module:
    """The network with weights that torch draws from a seed."""
    torch.manual_seed(derive_seed(seed, "model"))
    return task.kind.plain(**task.kind.shape, **task.named).to(torch.float64)


class Rows:
    """Which examples a partition has, and batches of them."""

    def __init__(self, task: Task, partitions: Partitions) -> None:
        self.task, self.partitions, self.apart = task, partitions, task.drawn["held"] == "apart"
        self.parts = range(task.drawn["partitions"]) if self.apart else [None]
        self.train, self.held = ([task.part(part, held) for part in self.parts] for held in (False, True))

    def of(self, round: int, partition: int, own: bool = False) -> list[tuple[bool, int, int]]:
        """The examples that a partition trains on, or holds out for itself: (held out, part, row)."""
        if own and self.apart:
            return self.held_out([partition])
        number = self.partitions.split.number(round)
        rows = self.partitions._train_rows(partition, number)[own]
        return [(False, partition if self.apart else 0, row) for row in rows.tolist()]

    def held_out(self, cohort: Iterable[int]) -> list[tuple[bool, int, int]]:
        """All examples that are held out, where partitions bring them those of a cohort."""
        if self.task.drawn["held"] == "drawn":
            return [(False, 0, row) for row in self.partitions._rows(0, 0)[1].tolist()]
        parts = cohort if self.apart else [0]
        return [(True, part, row) for part in parts for row in range(len(self.held[part][1]))]

    def batch(self, rows: Iterable[tuple[bool, int, int]]) -> tuple[Any, torch.Tensor]:
        pairs = [(self.held if held else self.train)[part] for held, part, _ in rows]
        places = [row for _, _, row in rows]
        each = [(_at(inputs, row), targets[row]) for (inputs, targets), row in zip(pairs, places, strict=True)]
        if self.task.kind.inputs == "ragged":
            return own.padded(each)
        inputs, targets = zip(*each, strict=True)
        if isinstance(inputs[0], dict):
            return {name: torch.stack([one[name] for one in inputs]) for name in inputs[0]}, torch.stack(targets)
        stacked = torch.stack(inputs)
        return stacked.double() / 255 if stacked.dtype == torch.uint8 else stacked, torch.stack(targets)


class Chosen(list):
    """Examples, some of which are taken by a tensor of places."""

    def __getitem__(self, places: Any) -> Any:
        return Chosen(list.__getitem__(self, place) for place in places.tolist())

    def split(self, size: int) -> list[Chosen]:
        return [Chosen(self[torch.arange(start, min(start + size, len(self)))]) for start in range(0, len(self), size)]


def _at(inputs: Any, row: int) -> Any:
    return {name: tensor[row] for name, tensor in inputs.items()} if isinstance(inputs, dict) else inputs[row]


# Losses and scores in plain torch.


def output(given: Any) -> torch.Tensor:
    return given["logits"] if isinstance(given, dict) else given


def losses(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each item, or one of all: a mean over labels that are not left out, over examples or outputs."""
    loss = task.drawn["loss"]
    if callable(loss):
        return loss(outputs, targets)
    if task.drawn["targets"] in ("number", "numbers"):
        return (outputs.flatten() - targets.flatten()) ** 2
    if targets.is_floating_point():
        return -(targets * outputs.log_softmax(1)).sum(1)
    if task.drawn["targets"] in ("places", "ragged"):
        outputs = outputs.transpose(1, 2)
    return functional.cross_entropy(outputs, targets, reduction="none")[targets != own.IGNORED]


def counted(task: Task, targets: torch.Tensor) -> int:
    labels = not callable(task.drawn["loss"]) and not targets.is_floating_point()
    return int((targets != own.IGNORED).sum()) if labels else len(targets)


def scores(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """The loss and the scores of all examples at once."""
    kind, loss = task.drawn["targets"], task.drawn["loss"]
    defaults = {"labels": ("accuracy",), "soft": (), "places": ("token_accuracy",), "maps": ("token_accuracy",)}
    defaults |= {"ragged": ("token_accuracy",)} | dict.fromkeys(("number", "numbers"), ("mae",) if loss == "mse" else ())
    chosen = defaults[kind] if task.drawn["scores"] is None else task.drawn["scores"]
    axis = 2 if kind in ("places", "ragged") else 1

    def score(name: Any) -> float:
        if callable(name):
            value = name(outputs, targets)
            return value if isinstance(value, float) else value.mean().item()
        if name == "mae":
            return (outputs.flatten() - targets.flatten()).abs().mean().item()
        if name == "top5":
            places = (outputs > outputs.gather(1, targets[:, None])).sum(1)
            return (places < 5).double().mean().item()
        right = (outputs.argmax(axis) == targets)[targets != own.IGNORED]
        return right.double().mean().item()

    named = {name.__name__ if callable(name) else name: score(name) for name in chosen}
    return {"loss": losses(task, outputs, targets).mean().item(), **named}


# The comparison of one configuration.


def given_of(task: Task, config: TrainConfig, run: Run) -> tuple[training.Given, Rows]:
    """What the plain loop is given: seeds, orders and splits as the project defines them."""
    resolved = resolve(config)
    partitions, fields = resolved.partitions, resolved.config
    rows, seed, name = Rows(task, partitions), fields.seed, task.drawn["algorithm"]["name"]
    algorithm = fields.algorithm
    begun = {key: tensor.clone() for key, tensor in run.round(0).tensors.items()}

    def network(of: int | None) -> nn.Module:
        built = build(task, seed if of is None else of)
        if of is None and task.drawn["network"] == "gpt":  # it draws its weights in a way of its own
            built.load_state_dict(begun)
        return built

    def order(examples: int, size: int | None, steps: int, drawn: int) -> list[torch.Tensor]:
        places = torch.arange(examples)
        return [batch.inputs.clone() for batch in batches(Examples(places, places), size, steps, drawn)]

    def cohort(round: int) -> tuple[int, ...]:
        return partitions.cohort_of(round) or tuple(range(fields.partitions))

    arrivals = []
    if name in ASYNCHRONOUS:
        commits = [run.round(round).commit for round in range(1, run.done + 1)]
        arrivals = [[(p, u.arrival.push, u.arrival.version) for p, u in c.updates.items() if u.arrival] for c in commits]
    apply = algorithm.parts.get("apply") or {"fed_yogi": "yogi"}.get(name)
    plain = {"scaffold": "plain_mean", "fed_dyn": "plain_mean", "fed_buff": "plain_mean", "matched": "matched"}
    return training.Given(
        name,
        {**algorithm.options, "apply": apply},
        fields.rounds,
        fields.partitions,
        network,
        lambda outputs, targets: losses(task, outputs, targets).mean(),
        lambda targets: counted(task, targets),
        lambda built, inputs: output(built(**inputs) if isinstance(inputs, dict) else built(inputs)),
        rows.batch,
        lambda round, partition: Chosen(rows.of(round, partition)),
        order,
        lambda number, partition: derive_seed(seed, number, partition),
        cohort,
        algorithm.parts.get("reduce") or plain.get(name, "mean"),
        fields.topology,
        arrivals,
    ), rows


def expected(task: Task, given: training.Given, rows: Rows) -> Iterable[dict[str, torch.Tensor]]:
    """All numbers of each round by name, from the plain loop; round 0 has tensors only."""
    for round, state in enumerate(loops.run(given)):
        network = training.network_of(given, state.params, state.buffers).eval()
        numbers = {f"tensor {name}": tensor for name, tensor in network.state_dict().items()}
        if round:
            cohort = list(state.train_loss) if not given.arrivals else range(given.partitions)
            numbers |= _scored(task, given, rows, network, round, cohort, state)
            numbers |= {f"train_loss {p}": number(loss) for p, loss in state.train_loss.items() if math.isfinite(loss)}
        yield numbers


@torch.no_grad()
def _scored(
    task: Task, given: training.Given, rows: Rows, network: nn.Module, round: int, cohort: Iterable[int], state: training.State
) -> dict[str, torch.Tensor]:
    def scored(chosen: Iterable[tuple[bool, int, int]], judged: nn.Module) -> dict[str, float]:
        inputs, targets = rows.batch(chosen)
        return scores(task, given.call(judged, inputs), targets)

    cohort = given.cohort(0) if given.arrivals else cohort
    found = scored(rows.held_out(cohort), network)
    numbers = {f"score {name}": value for name, value in found.items()}
    if task.drawn.get("score_partitions"):
        each = {}
        for p in cohort:
            judged = training.network_of(given, state.own.get(p, state.params), state.buffers).eval()
            each[p] = scored(rows.of(round, p, own=True), judged)
            if p in state.train_loss:  # the others push in another round of a server
                numbers |= {f"own_{name} {p}": value for name, value in each[p].items()}
        numbers |= {f"score {name}": value for name, value in loops.of_partitions(each).items()}
    return {name: number(value) for name, value in numbers.items()}


def found_in(run: Run, round: int) -> dict[str, torch.Tensor]:
    """The same numbers of a round as the project stored them."""
    stored = run.round(round)
    numbers = {f"tensor {name}": tensor for name, tensor in stored.tensors.items()}
    if round:
        assert stored.score is not None
        values = {f"score {name}": value for name, value in stored.score.row().items() if name != "examples"}
        for partition, update in stored.commit.updates.items():
            kept = {name: value for name, value in update.metrics.items() if name.startswith(("train_loss", "own_"))}
            values |= {f"{name} {partition}": value for name, value in kept.items()}
        numbers |= {name: number(value) for name, value in values.items() if math.isfinite(value)}
    return numbers


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def farthest(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """The largest difference of two rounds' numbers, in units of max(1, |x|), and where it is."""
    if wanted.keys() != found.keys():
        return math.inf, f"numbers that one has alone: {sorted(wanted.keys() ^ found.keys())}"
    largest, where = 0.0, ""
    for name, one in wanted.items():
        other = found[name]
        if one.dtype.is_floating_point:
            one, other = one.double(), other.double()
            off = ((one - other).abs() / one.abs().clamp(min=1)).nan_to_num(nan=math.inf).flatten()
            off[(one == other).flatten() | (one.isnan() & other.isnan()).flatten()] = 0
        else:
            off = (one != other).double().flatten() * math.inf if one.dtype == other.dtype else torch.tensor([math.inf])
            off = off.nan_to_num(nan=0.0, posinf=math.inf)
        if off.numel() and off.max() > largest:
            largest, where = off.max().item(), name
    return largest, where


def compare(which: int, root: Path) -> Result:
    """Run the configuration of a number in both ways; one that is refused is drawn again."""
    refusals: list[str] = []
    for attempt in range(ATTEMPTS):
        drawn = draw(which, attempt)
        task, result = Task(drawn), Result(which, as_line(drawn), refusals=refusals)
        name = f"c{which}-{attempt}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run = trained(root, name=name, **task.fields())
        except RoundweaveError as error:
            refusals.append(f"{type(error).__name__}: {error}")
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            result.error = f"the project fails with {type(error).__name__}: {error}"
            return result
        config = TrainConfig(root=root, executor="inline", name=f"{name}-plain", **task.fields())
        try:
            _compare_rounds(result, task, config, run)
        except Exception as error:  # noqa: BLE001
            result.error = f"the plain loop fails with {type(error).__name__}: {error}"
        return result
    return Result(which, "", error=f"refused {ATTEMPTS} times", refusals=refusals)


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
    """How many configurations there were, how many agree, the largest difference, and each that disagrees."""
    agree = [result for result in results if result.agrees]
    largest = max(agree, key=lambda result: result.difference, default=None)
    refusals = Counter(_kind_of(text) for result in results for text in result.refusals)
    lines = [
        f"{len(results)} configurations, {len(agree)} agree to {TOLERANCE:g}"
        + (f", the largest difference is {largest.difference:.2g} ({largest})" if largest else ""),
        *(f"disagrees: {result}" for result in results if not result.agrees),
        f"{sum(refusals.values())} were refused and drawn again:",
        *(f"  {count} x {text}" for text, count in refusals.most_common()),
    ]
    return "\n".join(lines)


def _kind_of(text: str) -> str:
    """A refusal without its numbers."""
    return "".join("#" if letter.isdigit() else letter for letter in text)[:160]


def main() -> None:
    numbers = [int(text) for text in sys.argv[1:]] or range(COUNT)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(which, Path(folder)) for which in numbers]
    print(summary(results))


if __name__ == "__main__":
    main()
