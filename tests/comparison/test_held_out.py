"""Each loss and score is one number: that of all held-out examples at once, by hand in plain torch.

It depends neither on partitions, batches and executors, nor on which axes happen to be of equal length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from roundweave.flows.stored import Run
from roundweave.storage.errors import ModelError
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.comparison.given import Rows, huber, padded
from tests.comparison.judged import (
    FEATURES,
    IGNORED,
    TOKENS,
    Labelled,
    Mapped,
    Placed,
    Rowed,
    binary,
    each,
    each_sequence,
    weighted,
    weighted_places,
)
from tests.rows import but_first

HELD_OUT, TRAIN = 256, 40


# By hand: functions of all outputs and targets at once, which give (), the loss with its gradient.


def ce(outputs: torch.Tensor, targets: torch.Tensor, axis: int = 1) -> torch.Tensor:
    """The mean over all labels that are not left out."""
    logs = outputs.movedim(axis, -1).flatten(0, -2).log_softmax(-1)
    labels = targets.flatten()
    kept = labels != IGNORED
    return -logs[kept].gather(1, labels[kept, None]).mean()


def right(outputs: torch.Tensor, targets: torch.Tensor, axis: int = 1) -> torch.Tensor:
    return (outputs.argmax(axis) == targets)[targets != IGNORED].double().mean()


def among_five(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs > outputs.gather(1, targets[:, None])).sum(1) < 5).double().mean()


def positive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of labels 0 and 1 that the sign of a single logit tells."""
    return ((outputs[:, 0] > 0) == targets).double().mean()


def shifted(hand: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of each place's logits and the next place's label."""
    return lambda outputs, targets: hand(outputs[:, :-1], targets[:, 1:], 2)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets.view_as(outputs)).square().mean()


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets.view_as(outputs)).abs().mean()


LAST = {"loss": partial(ce, axis=2), "token_accuracy": partial(right, axis=2)}
FIRST = {"loss": ce, "token_accuracy": right}
SHIFTED = {"loss": shifted(ce), "token_accuracy": shifted(right)}
ACCURACY = {"loss": ce, "accuracy": right, "top5": among_five}
DISTANCES = {"loss": squared, "mae": absolute}


@dataclass(frozen=True)
class Case:
    """A network, examples for it, a loss, and each number by hand.

    `targets` are ``labels``, ``numbers`` or ``ragged``, `shape` that of an example's, and `classes` how many there
    are.
    """

    model: type[nn.Module]
    options: Mapping[str, Any]
    hand: Mapping[str, Callable[..., torch.Tensor]]
    targets: str = "labels"
    shape: tuple[int, ...] = ()
    classes: int = 7
    loss: Any = "cross_entropy"

    @property
    def inputs(self) -> str:
        return {Rowed: "features", Mapped: "pictures"}.get(self.model, "tokens")

    def examples(self, count: int, seed: int) -> tuple[Any, Any]:
        """Of sequences and pictures some labels are left out, the more of them the later the example comes."""
        draw = torch.Generator().manual_seed(seed)
        numbers = partial(torch.randn, generator=draw, dtype=torch.float64)
        inputs = {
            "features": lambda: numbers(count, FEATURES),
            "pictures": lambda: numbers(count, 1, *self.shape),
            "tokens": lambda: torch.randint(
                self.options.get("tokens", TOKENS), (count, *self.shape), generator=draw
            ),
        }[self.inputs]()
        if self.targets == "numbers":
            return inputs, numbers(count, *self.shape)
        labels = torch.randint(self.classes, (count, *self.shape), generator=draw)
        if self.shape:
            chance = torch.linspace(0.1, 0.8, count).reshape(-1, *[1] * len(self.shape))
            left_out = torch.rand(labels.shape, generator=draw) < chance
            left_out[:, -1] = False
            labels = labels.masked_fill(left_out, IGNORED)
        if self.targets != "ragged":
            return inputs, labels
        lengths = torch.randint(2, self.shape[0] + 1, (count,), generator=draw)
        lengths[128:256].clamp_(max=self.classes)  # a batch that may have as many places as there are classes
        cut = zip(inputs, labels, lengths.tolist(), strict=True)
        rows = [(row[:n], label[-n:]) for row, label, n in cut]
        return [row for row, _ in rows], [label for _, label in rows]

    def parts(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Examples to train on, and held-out ones, of which the last batch has as many as there are classes."""
        return self.examples(TRAIN, 0), self.examples(HELD_OUT + self.classes, 1)

    def fields(self) -> dict[str, Any]:
        parts = tuple(Rows(*part) if self.targets == "ragged" else part for part in self.parts())
        scores = tuple(name for name in self.hand if name != "loss")
        data = {"data": lambda: parts, "dtype": "float64"}
        common = data | {"model": self.model, "model_options": dict(self.options)}
        collate = {"collate": padded} if self.targets == "ragged" else {}
        return {**common, **collate, "loss": self.loss, "scores": scores}

    def given(
        self, of: nn.Module | Mapping[str, torch.Tensor], held_out: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a network, or one with these tensors, gives for all examples at once, and their targets."""
        network, examples = of if isinstance(of, nn.Module) else self.network(of), self.parts()[held_out]
        ragged = self.targets == "ragged"
        inputs, targets = padded(list(zip(*examples, strict=True))) if ragged else examples
        outputs = network(inputs)
        return outputs["logits"] if isinstance(outputs, dict) else outputs, targets

    def network(self, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        network = self.model(**self.options).double()
        network.load_state_dict(dict(tensors))
        return network


def sequence(model: type[nn.Module], time: int, hand: Mapping[str, Any], **more: Any) -> Case:
    options = {"classes": more.get("classes", 7), **more.pop("options", {})}
    return Case(model, options, hand, shape=(time,), **more)


def picture(side: tuple[int, int], hand: Mapping[str, Any], **more: Any) -> Case:
    return Case(Mapped, {"classes": 7, **more.pop("options", {})}, hand, shape=side, **more)


RAGGED = {"targets": "ragged"}
STAYS, SHIFTS = ({"loss": "model", "options": {"shift": shift}} for shift in (False, True))
CLASSES_FIRST = {"options": {"first": True}}
TABLE = {"outputs": 6, "shape": (2, 3)}
OF_PLACES = {"loss": weighted_places}
OF_SEQUENCES = {"loss": lambda *both: each_sequence(*both).mean(), "token_accuracy": partial(right, axis=2)}

CASES = {
    "labels": Case(Rowed, {"outputs": 7}, ACCURACY),
    "as many classes as features": Case(Rowed, {"outputs": 5}, {"loss": ce, "accuracy": right}, classes=5),
    "a loss for each": Case(Rowed, {"outputs": 7}, ACCURACY, loss=each),
    "a weighted loss": Case(Rowed, {"outputs": 7}, {"loss": weighted, "accuracy": right}, loss=weighted),
    "one logit": Case(Rowed, {"outputs": 1}, {"loss": binary, "accuracy": positive}, classes=2, loss=binary),
    "a number": Case(Rowed, {"outputs": 1}, DISTANCES, "numbers", loss="mse"),
    "numbers": Case(Rowed, {"outputs": 3}, DISTANCES, "numbers", (3,), loss="mse"),
    "a table of numbers": Case(Rowed, TABLE, DISTANCES, "numbers", (2, 3), loss="mse"),
    "places": sequence(Placed, 4, LAST),
    "places, classes first": sequence(Placed, 4, FIRST, **CLASSES_FIRST),
    "as many places as classes": sequence(Placed, 7, LAST),
    "as many places as classes, which are first": sequence(Placed, 7, FIRST, **CLASSES_FIRST),
    "one place": sequence(Placed, 1, LAST),
    "more tokens than classes": sequence(Placed, 4, LAST, options={"tokens": 11}),
    "ragged": sequence(Placed, 5, LAST, **RAGGED),
    "ragged, sometimes as many places as classes": sequence(Placed, 9, LAST, **RAGGED),
    "ragged, sometimes as many, classes first": sequence(Placed, 9, FIRST, **CLASSES_FIRST, **RAGGED),
    "ragged, at most as many": sequence(Placed, 7, LAST, **RAGGED),
    "ragged, a loss for each": sequence(Placed, 5, OF_SEQUENCES, **RAGGED, loss=each_sequence),
    "places, a weighted loss": sequence(Placed, 4, OF_PLACES, loss=weighted_places),
    "pictures": picture((3, 4), FIRST),
    "pictures, classes last": picture((3, 4), {"loss": partial(ce, axis=3)}, options={"last": True}),
    "pictures as high as there are classes": picture((7, 4), FIRST),
    "pictures as wide as there are classes": picture((4, 7), FIRST),
    "pictures of sides as classes": picture((7, 7), FIRST),
    "a loss of its own": sequence(Labelled, 5, LAST, **STAYS),
    "a loss of its own that shifts": sequence(Labelled, 5, SHIFTED, **SHIFTS),
    "a loss of its own, as many places as classes": sequence(Labelled, 7, LAST, **STAYS),
    "a loss of its own, ragged": sequence(Labelled, 6, LAST, **STAYS, **RAGGED),
    "a loss of its own that shifts, ragged": sequence(Labelled, 6, SHIFTED, **SHIFTS, **RAGGED),
}

WRONG = {
    "mse of (2, 3) and (3, 2)": Case(Rowed, TABLE, {}, "numbers", (3, 2), loss="mse"),
    "mae of (2, 3) and (3, 2)": Case(Rowed, TABLE, {"mae": absolute}, "numbers", (3, 2), loss=huber),
}
"""Outputs and targets that do not belong together."""


FIRST = (
    "as many places as classes, which are first",
    "pictures as high as there are classes",
    "a loss of its own that shifts, ragged",
)
"""One for each way in which a mean would be wrong in silence: by axes, and by labels that are left out."""


def agree(case: Case, runs: Mapping[str, Run]) -> None:
    """Each run has the numbers by hand."""
    run = next(iter(runs.values()))
    outputs, targets = case.given(run.round(1).tensors, held_out=True)
    wanted = {number: hand(outputs, targets).item() for number, hand in case.hand.items()}
    for how, found in runs.items():
        row = found.round(1).score.row()
        assert {number: row.get(number) for number in wanted} == pytest.approx(wanted, rel=1e-9), how
        assert row["examples"] == len(targets), how


@pytest.mark.parametrize("name", but_first(FIRST, CASES))
def test_each_number_is_that_of_all_held_out_examples_at_once(train, monkeypatch, name: str) -> None:
    case = CASES[name]
    runs = {f"{n} partitions": scored(train, case, InlineExecutor(), n) for n in (1, 5)}
    monkeypatch.setattr("roundweave.tasks.networks.trying.fit.MOST_SCORED", 79)  # a few examples at a time
    agree(case, runs | {"pieces": scored(train, case, InlineExecutor(), 2, "pieces")})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_so_it_is_on_workers_and_by_ranks(train, client, name: str) -> None:
    executors = {"graph": GraphExecutor, "more": GraphExecutor, "ranks": RanksExecutor}
    parts = {"graph": 2, "more": 5, "ranks": 2}
    agree(CASES[name], {n: scored(train, CASES[name], of(client), parts[n], n) for n, of in executors.items()})


def scored(train, case: Case, executor: Any, partitions: int, name: str = "") -> Run:
    """A run of a round that moves nothing."""
    name = name or f"{type(executor).__name__}-{partitions}"
    common = {"partitions": partitions, "name": name, "rounds": 1, "algorithm": "sync_sgd", "lr": 1e-30}
    return train(executor, **case.fields(), **common)


@pytest.mark.parametrize("name", but_first(FIRST[-1:], ["places", "ragged", "a loss of its own"]))
def test_perplexity_is_the_exponential_of_the_mean_loss_of_a_label(train, name: str) -> None:
    loss = CASES[name].hand["loss"]
    case = replace(CASES[name], hand={"loss": loss, "perplexity": loss})
    for partitions in (1, 5):
        run = scored(train, case, InlineExecutor(), partitions)
        wanted = loss(*case.given(run.round(1).tensors, held_out=True)).item()
        assert run.round(1).score.values["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-9)


def test_padded_examples_of_partitions_and_of_validation_may_have_other_lengths(train) -> None:
    def rows(length: int) -> Rows:
        return Rows(*[[torch.ones(length, dtype=torch.int64)] * 8] * 2)

    fields = {"model": Placed, "model_options": {"classes": 7}, "loss": "cross_entropy", "collate": padded}
    run = train(
        data=lambda partition, partitions: (rows(2 + partition), rows(5)),
        validation=lambda: rows(4),
        partitions=2,
        rounds=1,
        **fields,
    )
    assert run.round(1).score.row()["validation_loss"] == pytest.approx(run.round(1).score.loss, rel=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_outputs_and_targets_of_other_shapes_are_refused(train, name: str) -> None:
    with pytest.raises(ModelError):
        scored(train, WRONG[name], InlineExecutor(), 1)


COUNTED = [name for name, case in CASES.items() if case.loss in ("cross_entropy", "model", "mse")]
"""Cases whose loss is a mean over known items, so that gradients of pieces add up to that of all."""


@pytest.mark.parametrize("name", but_first(FIRST, COUNTED))
def test_a_gradient_over_partitions_or_pieces_is_that_of_all_examples(train, name: str) -> None:
    case, found = CASES[name], {}
    fields = {key: value for key, value in case.fields().items() if key != "scores"} | {"rounds": 1, "lr": 0.5}
    pieces = {"algorithm": "fed_avg", "local_steps": 1, "batch_size": 3, "accumulate": TRAIN, "partitions": 1}
    for number, how in enumerate([*({"algorithm": "sync_sgd", "partitions": n} for n in (1, 5)), pieces]):
        run = train(**fields, **how, name=f"how{number}")
        found[str(how)] = run.round(1).params
    network = case.network(run.round(0).tensors)
    case.hand["loss"](*case.given(network, held_out=False)).backward()
    wanted = {key: (p - 0.5 * p.grad).detach() for key, p in network.named_parameters()}
    for how, params in found.items():
        for key, tensor in params.items():
            torch.testing.assert_close(tensor, wanted[key], rtol=1e-9, atol=1e-11, msg=f"{how}: {key}")
