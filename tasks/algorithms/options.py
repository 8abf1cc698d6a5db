"""The vocabulary of options: the meaning and the bounds of each, for all parts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas

LearningRate = Annotated[float, Field(gt=0, description="learning rate of the gradient steps")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum of the gradient steps")]
Nesterov = Annotated[bool, Field(description="use Nesterov momentum")]
LearningRateSchedule = Annotated[
    str, Field(description="learning rate schedule: constant, cosine[:ROUNDS], linear[:ROUNDS], step:EVERY:FACTOR")
]
LearningRateScheduleBy = Annotated[
    Literal["round", "step"], Field(description="interval at which the scheduled learning rate changes")
]
Warmup = Annotated[
    float | int, Field(ge=0, description="rounds (or a fraction) until the learning rate reaches its full value")
]
LocalSteps = Annotated[int | None, Field(ge=1, description="local steps per round, in place of local_epochs")]
LocalEpochs = Annotated[int | None, Field(ge=1, description="local epochs per round; 1 if local_steps is not set")]
Accumulate = Annotated[int, Field(ge=1, description="batches per step (gradient accumulation)")]
BatchSize = Annotated[int | None, Field(ge=1, description="examples per batch; none: all examples")]
DropLast = Annotated[bool, Field(description="leave out the last batch of an epoch if it is smaller")]
OptimizerOptions = Annotated[
    dict[str, Any] | None, Field(description="further options of the optimizer", examples=[{"weight_decay": 0.01}])
]
NoDecayOn = Annotated[
    tuple[Literal["biases", "norms"], ...],
    Field(description="parameters without weight decay: biases, norms (normalisation layers), or biases,norms"),
    BeforeValidator(at_commas),
]
OptimizerState = Annotated[
    Literal["fresh", "carried"], Field(description="optimizer state: fresh (each round), carried (over rounds)")
]
ClipNorm = Annotated[float | None, Field(gt=0, description="maximum L2 norm of a local gradient (clipping)")]
Init = Annotated[
    Literal["shared", "per-partition"], Field(description="initial weights: shared (same), per-partition (own)")
]
OuterLearningRate = Annotated[
    float, Field(gt=0, description="learning rate of the server's step along the mean update")
]
OuterMomentum = Annotated[float, Field(ge=0, lt=1, description="momentum of the server's step")]
FirstDecay = Annotated[float, Field(ge=0, lt=1, description="decay of the mean of updates (beta1)")]
SecondDecay = Annotated[float, Field(ge=0, lt=1, description="decay of the mean of squared updates (beta2)")]
Adaptivity = Annotated[float, Field(gt=0, description="constant in the denominator of the adaptive step (tau)")]
Proximity = Annotated[float, Field(ge=0, description="weight of the proximal term (squared distance)")]
FetchEvery = Annotated[int, Field(ge=1, description="steps between two fetches of the server's state")]
PushEvery = Annotated[int, Field(ge=1, description="steps between two pushes to the server")]
MaxStaleness = Annotated[
    int | None, Field(ge=0, description="maximum staleness of an update, in server rounds; none: no limit")
]
Stale = Annotated[
    Literal["drop", "scale"], Field(description="staler updates: drop (refuse), scale (by 1 / (1 + staleness))")
]
Buffer = Annotated[int, Field(ge=1, description="updates whose mean makes a server round")]
Elasticity = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="fraction of the distance that server and partition move; none: 0.9 / partitions",
    ),
]


WHOLE_BATCHES: Any = property(lambda map: (map.drop_last and map.batch_size) or 1)
"""The number whose multiple a pass of a map with these options takes."""


class Default(float):
    """A number that is a default. It equals a given number, but can be told from it."""


LEARNING_RATE = Default(0.1)
"""The learning rate of optimizers by name; one of the user's own has its own."""


@functools.cache
def options_of(part: type) -> Mapping[str, tuple[Any, Any]]:
    """Return the (type, default) of those fields of a part's class whose type has a description: its options."""
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
    """Raise `UsageError` if an option of a part, however it was made, is not within its bounds."""
    kind: type = type(part)
    for name, adapter in _adapters(kind).items():
        valid(name, getattr(part, name), adapter)


def valid(name: str, value: Any, adapter: TypeAdapter[Any], strict: bool = False) -> Any:
    """Return the value of an option after validation by the adapter of its type. Raises `UsageError`.

    If `strict`, a value of another type is refused and not converted.
    """
    try:
        return adapter.validate_python(value, strict=strict)
    except ValidationError as error:
        raise UsageError(f"{name} = {value!r}: {error.errors()[0]['msg']}") from error
