"""A drawn configuration as both sides take it: the user's functions, and losses and scores in plain torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import roundweave as rw
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.numerics.pinning import derive_seed
from tests.comparison import given as own
from tests.comparison.drawing import CROSSED, NETWORKS, WIDTHS, Kind


@dataclass
class Task:
    """A drawn configuration with the user's functions made of it; columns and classes are `moved` by so many."""

    drawn: Mapping[str, Any]
    moved: int = 0

    @property
    def kind(self) -> Kind:
        return (NETWORKS | CROSSED)[self.drawn["network"]]

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

    def form(self, *pairs: tuple[Any, Any], moved: int = 0) -> Any:
        """Examples to train on and perhaps to hold out, as a user gives them."""
        if self.drawn.get("named"):
            each = [own.renamed(*pair, moved) for pair in pairs]
            return rw.Dataset(*(rw.Examples(inputs, targets) for inputs, targets, _ in each), **each[0][2])
        made = tuple(own.Rows(*pair) if self.kind.inputs == "ragged" else pair for pair in pairs)
        return made if made[1:] else made[0]

    def data(self) -> Callable[..., Any]:
        """The function that gives the project its examples."""

        def whole() -> Any:
            given = [self.part(None, False), self.part(None, True)]
            return self.form(*given[: 1 + (self.drawn["held"] != "drawn")], moved=self.moved)

        def apart(partition: int, partitions: int) -> Any:
            return self.form(self.part(partition, False), self.part(partition, True), moved=self.moved)

        return apart if self.drawn["held"] == "apart" else whole

    def validation(self) -> tuple[Any, Any]:
        return self.examples(999, self.drawn["validation"])

    def fields(self) -> dict[str, Any]:
        """The fields of the `TrainConfig`."""
        names = ("network", "targets", "options", "examples", "held", "named", "begin")
        fields = {key: value for key, value in self.drawn.items() if key not in names and value is not None}
        model = self.kind.built_in or self.kind.plain
        options = self.drawn["options"] if self.kind.built_in else self.named
        ragged = {"collate": own.padded} if self.kind.inputs == "ragged" else {}
        if "validation" in fields:
            fields["validation"] = lambda: self.form(self.validation(), moved=3)
        common = {"dtype": "float64", "evaluate_every": 1, "data": self.data()}
        return {"keep": "all"} | fields | common | ragged | {"model": model, "model_options": options}


def build(task: Task, seed: int) -> nn.Module:
    """The network with weights that torch draws from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        return task.kind.plain(**task.kind.shape, **task.named).to(torch.float64)


Row = tuple[int, int, int]
"""An example: whether it was brought to train on, 0, hold out or validate, the part, and its row there."""

Pairs = list[tuple[Any, torch.Tensor]]


class Rows:
    """Which examples a partition has, what is drawn for them, and batches of them."""

    def __init__(self, task: Task, partitions: Partitions) -> None:
        self.task, self.partitions, self.apart = task, partitions, task.drawn["held"] == "apart"
        self.parts = range(task.drawn["partitions"]) if self.apart else [None]
        train, self.held = ([task.part(part, held) for part in self.parts] for held in (False, True))
        self.given = train, self.held, [task.validation()] if task.drawn.get("validation") else []

    def of(self, round: int, partition: int, own: bool = False) -> list[Row]:
        """The examples that a partition trains on, or holds out for itself."""
        if own and self.apart:
            return self.held_out([partition])
        number = self.partitions.split.number(round)
        rows = self.partitions.train_rows(partition, number)[own]
        return [(0, partition if self.apart else 0, row) for row in rows.tolist()]

    def held_out(self, cohort: Iterable[int]) -> list[Row]:
        """All examples that are held out, where partitions bring them those of a cohort."""
        if self.task.drawn["held"] == "drawn":
            return [(0, 0, row) for row in self.partitions._rows(0, 0)[1].tolist()]
        parts = cohort if self.apart else [0]
        return [(1, part, row) for part in parts for row in range(len(self.held[part][1]))]

    def prepared(self, rows: Iterable[Row], seed: int, scored: bool = False) -> Pairs:
        """Examples with what their transform draws from a seed."""
        each: Pairs = []
        for of, part, row in rows:
            inputs, targets = self.given[of][part]
            each.append((_at(inputs, row), targets[row]))
        if (transform := self.task.drawn.get("held_out_transform" if scored else "transform")) is None:
            return each
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [
                (transform(inputs), target) if scored else transform(inputs, target) for inputs, target in each
            ]

    def scored(self, rows: Iterable[Row]) -> list[list[Row]]:
        """Examples as they are scored at once: 128 of those that are read where they are used, of others 512."""
        read = self.task.kind.inputs == "ragged" or {"transform", "held_out_transform"} & {*self.task.drawn}
        parts, size = [[*each] for _, each in itertools.groupby(rows, lambda row: row[:2])], 128 if read else 512
        return [part[at : at + size] for part in parts for at in range(0, len(part), size)]

    def judged(self, rows: Iterable[Row]) -> Pairs:
        """Examples as they are scored, with draws that follow from the number of the first one of a batch."""
        drawn = (self.prepared(each, derive_seed(0, "batch", each[0][2]), True) for each in self.scored(rows))
        return list(itertools.chain.from_iterable(drawn))

    def batch(self, each: Pairs) -> tuple[Any, torch.Tensor]:
        if self.task.kind.inputs == "ragged":
            return own.padded(each)
        inputs, targets = zip(*each, strict=True)
        if isinstance(inputs[0], dict):
            return {name: torch.stack([one[name] for one in inputs]) for name in inputs[0]}, torch.stack(targets)
        stacked = torch.stack(inputs)
        return stacked.double() / 255 if stacked.dtype == torch.uint8 else stacked, torch.stack(targets)


def _at(inputs: Any, row: int) -> Any:
    return {name: tensor[row] for name, tensor in inputs.items()} if isinstance(inputs, dict) else inputs[row]


# Losses and scores in plain torch.


def read(task: Task, outputs: Any, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in what a network gives, and the targets that it is for."""
    outputs = own.logits(outputs)
    return (outputs[:, :-1], targets[:, 1:]) if task.drawn["options"].get("shift") else (outputs, targets)


def losses(task: Task, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each item, or one of all: a mean over labels that are not left out, over examples or outputs."""
    loss = task.drawn["loss"]
    if callable(loss):
        return loss(outputs, targets)
    outputs, targets = read(task, outputs, targets)
    if task.drawn["targets"] in ("number", "numbers"):
        return (outputs.flatten() - targets.flatten()) ** 2
    if targets.is_floating_point():
        return -(targets * outputs.log_softmax(1)).sum(1)
    if task.drawn["targets"] in ("places", "ragged"):
        outputs = outputs.transpose(1, 2)
    return functional.cross_entropy(outputs, targets, reduction="none")[targets != own.IGNORED]


def counted(task: Task, targets: torch.Tensor) -> int:
    targets = targets[:, 1:] if task.drawn["options"].get("shift") else targets
    labels = not callable(task.drawn["loss"]) and not targets.is_floating_point()
    return int((targets != own.IGNORED).sum()) if labels else len(targets)


def scores(task: Task, given: Any, wanted: torch.Tensor) -> dict[str, float]:
    """The loss and the scores of all examples at once."""
    outputs, targets = read(task, given, wanted)
    kind, loss = task.drawn["targets"], task.drawn["loss"]
    defaults = {"labels": ("accuracy",), "soft": (), "places": ("token_accuracy",), "maps": ("token_accuracy",)}
    defaults |= {"ragged": ("token_accuracy",)} | dict.fromkeys(
        ("number", "numbers"), ("mae",) if loss == "mse" else ()
    )
    chosen = defaults[kind] if task.drawn["scores"] is None else task.drawn["scores"]
    axis = 2 if kind in ("places", "ragged") else 1

    def score(name: Any) -> float:
        if callable(name):
            value = name(given, wanted)
            return value if isinstance(value, float) else value.mean().item()
        if name == "perplexity":
            return math.exp(losses(task, given, wanted).mean().item())
        if name == "mae":
            return (outputs.flatten() - targets.flatten()).abs().mean().item()
        if name == "top5":
            places = (outputs > outputs.gather(1, targets[:, None])).sum(1)
            return (places < 5).double().mean().item()
        right = (outputs.argmax(axis) == targets)[targets != own.IGNORED]
        return right.double().mean().item()

    named = {name.__name__ if callable(name) else name: score(name) for name in chosen}
    return {"loss": losses(task, given, wanted).mean().item(), **named}
