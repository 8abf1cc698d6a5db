"""Each loss and score is one number: that of all held-out examples at once, by hand in plain torch.

It depends neither on partitions, batches and executors, nor on which axes happen to be of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from distributed import Client
from torch import nn
from torch.nn import functional

from storage.errors import ModelError
from tasks.clusters.connecting import connect
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor
from tasks.executors.ranks import RanksExecutor
from tests.comparison.given import Rows, padded
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

pytestmark = pytest.mark.slow

HELD_OUT, TRAIN = 256, 40


# By hand: a function of all outputs and targets.


def ce(outputs: torch.Tensor, targets: torch.Tensor, axis: int = 1) -> float:
    """The mean over all labels that are not left out."""
    logs = outputs.movedim(axis, -1).flatten(0, -2).log_softmax(-1)
    labels = targets.flatten()
    kept = labels != IGNORED
    return -logs[kept].gather(1, labels[kept, None]).mean().item()


def right(outputs: torch.Tensor, targets: torch.Tensor, axis: int = 1) -> float:
    return (outputs.argmax(axis) == targets)[targets != IGNORED].double().mean().item()


def among_five(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return ((outputs > outputs.gather(1, targets[:, None])).sum(1) < 5).double().mean().item()


def perplexity(outputs: torch.Tensor, targets: torch.Tensor, axis: int = 1) -> float:
    return torch.tensor(ce(outputs, targets, axis)).exp().item()


def shifted(hand: Callable[..., float]) -> Callable[..., float]:
    """Of each place's logits and the next place's label."""
    return lambda outputs, targets: hand(outputs[:, :-1], targets[:, 1:], 2)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs - targets.view_as(outputs)).square().mean().item()


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs - targets.view_as(outputs)).abs().mean().item()


LAST = {
    "loss": partial(ce, axis=2),
    "token_accuracy": partial(right, axis=2),
    "perplexity": partial(perplexity, axis=2),
}
FIRST = {"loss": ce, "token_accuracy": right, "perplexity": perplexity}


@dataclass(frozen=True)
class Case:
    """A network, examples for it, a loss, and each number by hand; `ambiguous` ones may be refused instead.

    `targets` are ``labels``, ``numbers`` or ``ragged``, `shape` that of an example's, and `classes` how many there
    are.
    """

    model: type[nn.Module]
    options: Mapping[str, Any]
    hand: Mapping[str, Callable[..., float]]
    targets: str = "labels"
    shape: tuple[int, ...] = ()
    classes: int = 7
    loss: Any = "cross_entropy"
    ambiguous: bool = False

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
            "tokens": lambda: torch.randint(TOKENS, (count, *self.shape), generator=draw),
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
        lengths = torch.randint(2, self.shape[0] + 1, (count,), generator=draw).tolist()
        cut = zip(inputs, labels, lengths, strict=True)
        rows = [(row[:n], label[-n:]) for row, label, n in cut]
        return [row for row, _ in rows], [label for _, label in rows]

    def parts(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Examples to train on, and held-out ones, of which the last batch has as many as there are classes."""
        return self.examples(TRAIN, 0), self.examples(HELD_OUT + self.classes, 1)

    def fields(self) -> dict[str, Any]:
        parts = tuple(Rows(*part) if self.targets == "ragged" else part for part in self.parts())
        scores = tuple(name for name in self.hand if name != "loss")
        common = {
            "data": lambda: parts,
            "model": self.model,
            "model_options": dict(self.options),
            "dtype": "float64",
        }
        collate = {"collate": padded} if self.targets == "ragged" else {}
        return {**common, **collate, "loss": self.loss, "scores": scores}

    def batch(self, examples: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return padded(list(zip(*examples, strict=True))) if self.targets == "ragged" else examples

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
MODEL: dict[str, Any] = {"loss": "model", "classes": TOKENS}
SHIFTED = {"loss": shifted(ce), "token_accuracy": shifted(right), "perplexity": shifted(perplexity)}
SHIFTS, STAYS = ({"options": {"shift": shift}, **MODEL} for shift in (True, False))
ACCURACY = {"accuracy": right, "top5": among_five}

CASES = {
    "labels": Case(Rowed, {"outputs": 7}, {"loss": ce, **ACCURACY}),
    "as many classes as features": Case(Rowed, {"outputs": FEATURES}, {"loss": ce, "accuracy": right}, classes=5),
    "a loss for each": Case(Rowed, {"outputs": 7}, {"loss": ce, **ACCURACY}, loss=each),
    "a weighted loss": Case(Rowed, {"outputs": 7}, {"loss": lambda *both: weighted(*both).item()}, loss=weighted),
    "one logit": Case(
        Rowed,
        {"outputs": 1},
        {
            "loss": lambda *both: binary(*both).item(),
            "accuracy": lambda outputs, targets: ((outputs[:, 0] > 0) == targets).double().mean().item(),
        },
        classes=2,
        loss=binary,
        ambiguous=True,
    ),
    "a number": Case(Rowed, {"outputs": 1}, {"loss": squared, "mae": absolute}, "numbers", loss="mse"),
    "numbers": Case(Rowed, {"outputs": 3}, {"loss": squared, "mae": absolute}, "numbers", (3,), loss="mse"),
    "a table of numbers": Case(
        Rowed, {"outputs": 6, "shape": (2, 3)}, {"loss": squared, "mae": absolute}, "numbers", (2, 3), loss="mse"
    ),
    "places": sequence(Placed, 4, LAST),
    "places, classes first": sequence(Placed, 4, FIRST, options={"first": True}),
    "as many places as classes": sequence(Placed, 7, LAST, ambiguous=True),
    "as many places as classes, which are first": sequence(
        Placed, 7, FIRST, options={"first": True}, ambiguous=True
    ),
    "one place": sequence(Placed, 1, LAST),
    "ragged": sequence(Placed, 5, LAST, **RAGGED),
    "ragged, sometimes as many places as classes": sequence(Placed, 9, LAST, **RAGGED),
    "ragged, sometimes as many, classes first": sequence(Placed, 9, FIRST, options={"first": True}, **RAGGED),
    "ragged, at most as many": sequence(Placed, 7, LAST, **RAGGED, ambiguous=True),
    "ragged, a loss for each": sequence(
        Placed,
        5,
        {"loss": lambda *both: each_sequence(*both).mean().item(), "token_accuracy": LAST["token_accuracy"]},
        **RAGGED,
        loss=each_sequence,
    ),
    "ragged, a weighted loss": sequence(
        Placed,
        5,
        {"loss": lambda *both: weighted_places(*both).item()},
        **RAGGED,
        loss=weighted_places,
        ambiguous=True,
    ),
    "places, a weighted loss": sequence(
        Placed, 4, {"loss": lambda *both: weighted_places(*both).item()}, loss=weighted_places
    ),
    "pictures": picture((3, 4), FIRST),
    "pictures, classes last": picture((3, 4), {"loss": partial(ce, axis=3)}, options={"last": True}),
    "pictures as high as there are classes": picture((7, 4), FIRST),
    "pictures as wide as there are classes": picture((4, 7), FIRST),
    "pictures of sides as classes": picture((7, 7), FIRST, ambiguous=True),
    "a loss of its own": sequence(Labelled, 5, LAST, **STAYS),
    "a loss of its own that shifts": sequence(Labelled, 5, SHIFTED, **SHIFTS),
    "a loss of its own, as many places as classes": sequence(Labelled, TOKENS, LAST, **STAYS),
    "a loss of its own, ragged": sequence(Labelled, 6, LAST, **STAYS, **RAGGED),
    "a loss of its own that shifts, ragged": sequence(Labelled, 6, SHIFTED, **SHIFTS, **RAGGED),
}

WRONG = {
    "mse of (2, 3) and (3, 2)": Case(Rowed, {"outputs": 6, "shape": (2, 3)}, {}, "numbers", (3, 2), loss="mse"),
    "mae of (2, 3) and (3, 2)": Case(
        Rowed, {"outputs": 6, "shape": (2, 3)}, {"mae": absolute}, "numbers", (3, 2), loss="mse"
    ),
}
"""Outputs and targets that do not belong together."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with connect(None, 2) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_each_number_is_that_of_all_held_out_examples_at_once(train, client, monkeypatch, name: str) -> None:
    case, found = CASES[name], {}
    on_workers = [(GraphExecutor(client), 2), (GraphExecutor(client), 5), (RanksExecutor(client), 2)]
    for executor, partitions in [*((InlineExecutor(), n) for n in (1, 2, 5)), *on_workers]:
        how = f"{type(executor).__name__} {partitions}"
        if (run := scored(train, case, executor, partitions=partitions)) is None:
            return
        found[how] = run.round(1).score.row()
    with monkeypatch.context() as patch:
        patch.setattr("tasks.networks.fit.MOST_SCORED", 79)  # a few examples at a time
        found["pieces"] = scored(train, case, InlineExecutor(), partitions=2, name="pieces").round(1).score.row()
    inputs, targets = case.batch(case.parts()[1])
    given = case.network(run.round(1).tensors)(inputs)
    outputs = (given["logits"] if isinstance(given, dict) else given).detach()
    wanted = {number: hand(outputs, targets) for number, hand in case.hand.items()}
    for how, row in found.items():
        numbers = {number: row.get(number) for number in wanted}
        assert numbers == pytest.approx(wanted, rel=1e-9), how
        assert row["examples"] == len(targets), how


def scored(train, case: Case, executor: Any, **fields: Any):
    """A round that moves nothing; None if an ambiguous case is refused."""
    fields = {"name": f"{type(executor).__name__}{fields['partitions']}", **fields}
    try:
        return train(executor, **case.fields(), **fields, rounds=1, algorithm="sync_sgd", lr=1e-30)
    except ModelError:
        if case.ambiguous:
            return None
        raise


@pytest.mark.parametrize("name", WRONG)
def test_outputs_and_targets_of_other_shapes_are_refused(train, name: str) -> None:
    with pytest.raises(ModelError):
        scored(train, WRONG[name], InlineExecutor(), partitions=1)


COUNTED = [name for name, case in CASES.items() if case.loss in ("cross_entropy", "model", "mse")]
"""Cases whose loss is a mean over known items, so that gradients of pieces add up to that of all."""


@pytest.mark.parametrize("name", COUNTED)
def test_a_gradient_over_partitions_or_pieces_is_that_of_all_examples(train, name: str) -> None:
    case = CASES[name]
    fields = {key: value for key, value in case.fields().items() if key != "scores"} | {"rounds": 1, "lr": 0.5}
    pieces = {"algorithm": "fed_avg", "local_steps": 1, "batch_size": 3, "accumulate": TRAIN, "partitions": 1}
    hows = [{"algorithm": "sync_sgd", "partitions": n} for n in (1, 2, 5)] + [pieces]
    for number, how in enumerate(hows):
        try:
            run = train(**fields, **how, name=f"how{number}")
        except ModelError:
            assert case.ambiguous
            return
        network = case.network(run.round(0).tensors)
        inputs, targets = case.batch(case.parts()[0])
        if case.loss == "model":
            loss = network(inputs, labels=targets)["loss"]
        elif case.loss == "mse":
            loss = functional.mse_loss(network(inputs), targets.view_as(network(inputs)))
        else:
            outputs, axis = (
                network(inputs),
                case.hand["loss"].keywords["axis"] if isinstance(case.hand["loss"], partial) else 1,
            )
            loss = functional.cross_entropy(outputs.movedim(axis, 1), targets)
        loss.backward()
        for key, parameter in network.named_parameters():
            wanted = (parameter - 0.5 * parameter.grad).detach()
            torch.testing.assert_close(
                run.round(1).tensors[key], wanted, rtol=1e-9, atol=1e-11, msg=f"{how}, {key}"
            )
