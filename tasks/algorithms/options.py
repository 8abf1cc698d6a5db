"""The vocabulary of options: what each means, and between which bounds, whichever part has it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas

LearningRate = Annotated[float, Field(gt=0, description="learning rate of the optimizer that sees gradients")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum of that optimizer")]
Nesterov = Annotated[bool, Field(description="whether the momentum is Nesterov's")]
LearningRateSchedule = Annotated[
    str,
    Field(description="learning rate over rounds: constant, cosine[:ROUNDS], linear[:ROUNDS], step:EVERY:FACTOR"),
]
LearningRateScheduleBy = Annotated[
    Literal["round", "step"],
    Field(description="whether the learning rate changes with each round, or with each step of a round, too"),
]
Warmup = Annotated[
    float | int, Field(ge=0, description="rounds over which the learning rate grows to its size, also fractions")
]
LocalSteps = Annotated[int | None, Field(ge=1, description="steps that a partition takes in a round")]
LocalEpochs = Annotated[int | None, Field(ge=1, description="passes over its examples in a round")]
Accumulate = Annotated[int, Field(ge=1, description="batches of whose gradients a step takes the mean")]
BatchSize = Annotated[int | None, Field(ge=1, description="examples a batch; none: all of the partition")]
OptimizerOptions = Annotated[
    dict[str, Any] | None, Field(description="its further options", examples=[{"weight_decay": 0.01}])
]
NoDecayOn = Annotated[
    tuple[Literal["biases", "norms"], ...],
    Field(description="without weight decay: biases, norms (parameters of normalisation layers), at a comma both"),
    BeforeValidator(at_commas),
]
OptimizerState = Annotated[
    Literal["fresh", "carried"],
    Field(description="each round the local optimizer restarts, or goes on with what the partition carries"),
]
ClipNorm = Annotated[float | None, Field(gt=0, description="bound on the L2 norm of local gradients")]
Init = Annotated[
    Literal["shared", "per-partition"],
    Field(description="initial weights: one for all, or each partition its own"),
]
OuterLearningRate = Annotated[
    float, Field(gt=0, description="learning rate of the step by the mean of the updates")
]
OuterMomentum = Annotated[float, Field(ge=0, lt=1, description="momentum of that step")]
FirstDecay = Annotated[float, Field(ge=0, lt=1, description="decay of the mean of directions")]
SecondDecay = Annotated[float, Field(ge=0, lt=1, description="decay of the mean of their squares")]
Adaptivity = Annotated[
    float, Field(gt=0, description="below which size of the directions the steps adapt no more")
]
Proximity = Annotated[float, Field(ge=0, description="weight of the squared distance to the round's start")]
FetchEvery = Annotated[int, Field(ge=1, description="steps after which a partition fetches the server's state")]
PushEvery = Annotated[int, Field(ge=1, description="steps after which a partition pushes to the server")]
MaxStaleness = Annotated[
    int | None, Field(ge=0, description="server rounds that an update may be behind; none: any number")
]
Stale = Annotated[
    Literal["drop", "scale"],
    Field(description="refuse updates beyond that, or take them times 1 / (1 + staleness)"),
]
Buffer = Annotated[int, Field(ge=1, description="updates that make a server round, their mean")]
Elasticity = Annotated[
    float | None,
    Field(
        gt=0, lt=1, description="share of their distance that partition and server move; none: 0.9 / partitions"
    ),
]


class Default(float):
    """A number that is a default. It equals one that the user gives, but can be told from it."""


LEARNING_RATE = Default(0.1)
"""The learning rate of optimizers by name; one of the user's own has its own."""


@functools.cache
def options_of(part: type) -> Mapping[str, tuple[Any, Any]]:
    """The (type, default) of the fields of a part's class that are options: those whose type has a description."""
    hints = get_type_hints(part, include_extras=True)
    plain = {each.name: float(each.default) for each in fields(part) if isinstance(each.default, Default)}
    every = {each.name: (hints[each.name], plain.get(each.name, each.default)) for each in fields(part)}
    return {name: option for name, option in every.items() if _is_described(option[0])}


def _is_described(annotation: Any) -> bool:
    return any(isinstance(each, FieldInfo) for each in getattr(annotation, "__metadata__", ()))


@functools.cache
def _adapters(part: type) -> Mapping[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(annotation) for name, (annotation, _) in options_of(part).items()}


def check_options(part: object) -> None:
    """Raise `UsageError` where an option of a part, however it was made, is not within its bounds."""
    kind: type = type(part)
    for name, adapter in _adapters(kind).items():
        valid(name, getattr(part, name), adapter)


def valid(name: str, value: Any, adapter: TypeAdapter[Any], strict: bool = False) -> Any:
    """The value of an option as the adapter of its type has it; raises `UsageError` for one that is not taken.

    If `strict`, a value of another type is refused and not converted.
    """
    try:
        return adapter.validate_python(value, strict=strict)
    except ValidationError as error:
        raise UsageError(f"{name} = {value!r}: {error.errors()[0]['msg']}") from error
