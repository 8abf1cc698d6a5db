"""The vocabulary of options: what each means, and between which bounds, whichever part has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

LearningRate = Annotated[float, Field(gt=0, description="learning rate of the optimizer that sees gradients")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum of that optimizer")]
Nesterov = Annotated[bool, Field(description="whether the momentum is Nesterov's")]
LearningRateSchedule = Annotated[
    str, Field(description="lr over rounds: constant, cosine[:ROUNDS], linear[:ROUNDS], step:EVERY:FACTOR")
]
Warmup = Annotated[int, Field(ge=0, description="rounds over which the learning rate grows to its size")]
LocalSteps = Annotated[int | None, Field(ge=1, description="batches that a partition trains on in a round")]
LocalEpochs = Annotated[int | None, Field(ge=1, description="passes over its examples in a round")]
BatchSize = Annotated[int | None, Field(ge=1, description="examples a batch; none: all of the partition")]
OptimizerOptions = Annotated[
    dict[str, Any] | None, Field(description="its further options", examples=[{"weight_decay": 0.01}])
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
OuterSchedule = Annotated[
    str,
    Field(
        description="that learning rate over rounds: constant, cosine[:ROUNDS], linear[:ROUNDS], step:EVERY:FACTOR"
    ),
]
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
