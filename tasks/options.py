"""The vocabulary of options: what each means, and between which bounds, whichever algorithm takes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from storage.parsing import at_commas
from tasks import when
from tasks.algebra import Algorithm
from tasks.maps.optimizers import optimizer_name
from tasks.matching.search.evidence import By
from tasks.reduces.matched import To
from tasks.reduces.table import REDUCES
from tasks.tables import spelled

LearningRate = Annotated[float, Field(gt=0, description="learning rate of the optimizer that sees gradients")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum of that optimizer")]
Nesterov = Annotated[bool, Field(description="whether its momentum is Nesterov's")]
LearningRateSchedule = Annotated[
    str, Field(description="lr over rounds: constant, cosine[:ROUNDS], linear[:ROUNDS], step:EVERY:FACTOR")
]
Warmup = Annotated[int, Field(ge=0, description="rounds over which lr grows to its size")]
LocalSteps = Annotated[int | None, Field(ge=1, description="batches that a partition trains on in a round")]
MostLocalSteps = Annotated[
    int | None, Field(ge=1, description="no more local steps a round than these; none: as many as an epoch has")
]
LocalEpochs = Annotated[int | None, Field(ge=1, description="passes over its examples in a round")]
BatchSize = Annotated[int | None, Field(ge=1, description="examples a batch; none: all of the partition")]
Optimizer = Annotated[
    str,
    Field(description="the local optimizer: any of torch.optim; it restarts each round"),
    AfterValidator(optimizer_name),
]
OptimizerOptions = Annotated[
    dict[str, Any] | None, Field(description="its further options", examples=[{"weight_decay": 0.01}])
]
ClipNorm = Annotated[float | None, Field(gt=0, description="bound on the L2 norm of local gradients")]
Init = Annotated[
    Literal["shared", "per-partition"],
    Field(description="initial weights: one for all, or each partition its own"),
]
Ranks = Annotated[int, Field(ge=1, description="processes that share one network, each with a part of its layers")]
Units = Annotated[
    tuple[str, ...] | None,
    Field(description="layers whose units they share, at commas; none: those that hold the most"),
    BeforeValidator(at_commas),
]
Hybrid = Annotated[bool, Field(description="whether they share the batch before these layers")]
Stacked = Annotated[int, Field(ge=1, description="small partitions to train side by side, with bits of their own")]
ReduceName = Annotated[str, Field(description=f"how updates become one: {', '.join(spelled(REDUCES))}")]
Match = Annotated[By | None, Field(description="match hidden units before the reduce, compared by this")]
MatchTo = Annotated[
    To | None, Field(description="match to the round's start, the first network, or all to one another")
]
Soft = Annotated[
    int | None, Field(ge=0, description="mix the k most similar units, 0 all, in place of a permutation")
]
OuterLearningRate = Annotated[float, Field(gt=0, description="learning rate of the optimizer that sees averages")]
OuterMomentum = Annotated[float, Field(ge=0, lt=1, description="momentum of that optimizer")]
OuterNesterov = Annotated[bool, Field(description="whether its momentum is Nesterov's")]
OuterSchedule = Annotated[str, Field(description="outer_lr over rounds: as lr_schedule")]
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
    when.Stale,
    Field(description="refuse updates beyond that, or take them times 1 / (1 + staleness)"),
]
Buffer = Annotated[int, Field(ge=1, description="updates that make a server round, their mean")]
Elasticity = Annotated[
    float | None,
    Field(
        gt=0, lt=1, description="share of their distance that partition and server move; none: 0.9 / partitions"
    ),
]

Builder = Callable[..., Algorithm]


def extending(base: Builder, without: tuple[str, ...] = (), **defaults: Any) -> Callable[[Builder], Builder]:
    """Have a function take, beside its own options, those of another: all but `without`, and with other defaults.

    The signature and the annotations of what it gives tell them all; those that are not its own reach the
    function by its ``**options``.
    """

    def extend(function: Builder) -> Builder:
        known = inspect.signature(base, eval_str=True).parameters
        own = [
            p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is p.KEYWORD_ONLY
        ]
        hidden = {*without, *(p.name for p in own)}
        taken = [
            p.replace(default=defaults.get(p.name, p.default)) for p in known.values() if p.name not in hidden
        ]
        signature = inspect.Signature([*taken, *own], return_annotation=Algorithm)

        @functools.wraps(function)
        def extended(**options: Any) -> Algorithm:
            return function(**defaults | signature.bind(**options).kwargs)

        annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        extended.__annotations__ = {**annotations, "return": Algorithm}
        vars(extended)["__signature__"] = signature
        return extended

    return extend
