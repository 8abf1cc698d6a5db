"""A drawn configuration as both sides take it: the user's functions, and losses and scores in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.numerics.pinning import derive_seed
from tests.comparison import given as own
from tests.comparison.drawing import NETWORKS, WIDTHS, Kind


@dataclass
class Task:
    """A drawn configuration with the user's functions made of it."""

    drawn: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
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


Row = tuple[bool, int, int]
"""An example: whether it was brought to be held out, the part that it is of, and its row there."""


class Rows:
    """Which examples a partition has, and batches of them."""

    def __init__(self, task: Task, partitions: Partitions) -> None:
        self.task, self.partitions, self.apart = task, partitions, task.drawn["held"] == "apart"
        self.parts = range(task.drawn["partitions"]) if self.apart else [None]
        self.train, self.held = ([task.part(part, held) for part in self.parts] for held in (False, True))

    def of(self, round: int, partition: int, own: bool = False) -> list[Row]:
        """The examples that a partition trains on, or holds out for itself."""
        if own and self.apart:
            return self.held_out([partition])
        number = self.partitions.split.number(round)
        rows = self.partitions._train_rows(partition, number)[own]
        return [(False, partition if self.apart else 0, row) for row in rows.tolist()]

    def held_out(self, cohort: Iterable[int]) -> list[Row]:
        """All examples that are held out, where partitions bring them those of a cohort."""
        if self.task.drawn["held"] == "drawn":
            return [(False, 0, row) for row in self.partitions._rows(0, 0)[1].tolist()]
        parts = cohort if self.apart else [0]
        return [(True, part, row) for part in parts for row in range(len(self.held[part][1]))]

    def batch(self, rows: Iterable[Row]) -> tuple[Any, torch.Tensor]:
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
    defaults |= {"ragged": ("token_accuracy",)} | dict.fromkeys(
        ("number", "numbers"), ("mae",) if loss == "mse" else ()
    )
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
