"""The configuration of a run: the flow's parameter, the command's options and the record's JSON in one definition.

It has two parts. The *experiment* is what the run is: a resumed run must have the same. The *execution* is how
and how long it is run, and may change.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tasks.user_code import Code, find_code

ROOT_VARIABLE = "ROUNDWEAVE_ROOT"


def _keep_callable(value: Any) -> Any:
    return find_code(value) if callable(value) else value


NamedOrOwn = Annotated[str | Code, BeforeValidator(_keep_callable, json_schema_input_type=str | Code)]
"""A built-in name, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""


class Experiment(BaseModel):
    """What the run is; resuming compares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: NamedOrOwn = Field("digits", description="digits, mnist:DIR, fashion-mnist:DIR, FILE.py:fn")
    model: NamedOrOwn = Field("mlp", description="linear, logistic, mlp, cnn, FILE.py:fn")
    model_options: dict[str, Any] = Field({}, description="keyword arguments of the model, such as hidden")
    loss: NamedOrOwn | None = Field(None, description="cross_entropy, mse, FILE.py:fn; default: by the targets")
    algorithm: NamedOrOwn = Field("fed_avg", description="sync_sgd, fed_avg, diloco, matched, or FILE.py:fn")
    partitions: int = Field(4, ge=1, description="into how many parts the examples are split")
    split: Literal["iid", "contiguous"] = Field("iid", description="how examples are dealt to partitions")
    resplit_every: int | None = Field(None, ge=1, description="a new random split every so many rounds")
    held_out: float = Field(0.1, ge=0, lt=1, description="share of examples held out where the data has none")
    local_steps: int | None = Field(None, ge=1, description="batches that a partition trains on in a round")
    local_epochs: int | None = Field(None, ge=1, description="passes over its examples in a round")
    batch_size: int | None = Field(None, ge=1, description="examples a batch")
    optimizer: str | None = Field(None, description="the local optimizer: any of torch.optim")
    optimizer_options: dict[str, Any] | None = Field(None, description="its further options")
    lr: float | None = Field(None, gt=0, description="learning rate of the optimizer that sees gradients")
    momentum: float | None = Field(None, ge=0, lt=1, description="its momentum")
    nesterov: bool | None = Field(None, description="whether that momentum is Nesterov's")
    clip_norm: float | None = Field(None, gt=0, description="bound on the L2 norm of local gradients")
    outer_lr: float | None = Field(None, gt=0, description="learning rate of the optimizer that sees averages")
    outer_momentum: float | None = Field(None, ge=0, lt=1, description="its momentum")
    outer_nesterov: bool | None = Field(None, description="whether that momentum is Nesterov's")
    init: Literal["shared", "per-partition"] | None = Field(
        None, description="initial weights: one for all, or each partition its own (shared)"
    )
    match: Literal["weights", "activations", "mixed"] | None = Field(
        None, description="match hidden units before averaging, compared by this"
    )
    match_to: Literal["start", "first", "many"] | None = Field(
        None, description="match to the round's start, the first network, or all to one another"
    )
    soft: int | None = Field(
        None, ge=0, description="mix the k most similar units, 0 all, in place of a permutation"
    )
    quorum: int = Field(1, ge=1, description="a round with fewer accepted updates fails")
    seed: int = Field(0, ge=0, description="decides every random number")
    dtype: Literal["float32", "float64", "bfloat16"] = Field("float32", description="type of the parameters")
    threads: int = Field(1, ge=1, description="torch threads of a map")
    mixed_hardware: bool = Field(False, description="accept unequal machines; withdraws the promise of equal bits")

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.split == "contiguous" and self.resplit_every:
            raise ValueError("resplit_every needs split = iid: a contiguous split is always the same")
        if self.local_steps and self.local_epochs:
            raise ValueError("give local_steps or local_epochs, not both")
        if self.quorum > self.partitions:
            raise ValueError(f"quorum {self.quorum} is more than the {self.partitions} partitions")
        return self


class Placement(BaseModel):
    """Where work is run, and where its results are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(2, ge=1, description="processes of the local Dask cluster")
    scheduler: str | None = Field(None, description="address or file of a running Dask scheduler")
    executor: Literal["graph", "inline"] = Field("graph", description="Dask cluster, or a loop in this process")
    root: Path = Field(
        default_factory=lambda: Path(os.environ.get(ROOT_VARIABLE, "runs")), description="folder of all runs"
    )
    name: str | None = Field(
        None, pattern=r"^[\w][\w.\-]*$", description="name of the run; an existing one goes on"
    )


class Execution(Placement):
    """How and how long the run is run; may change when it is resumed."""

    rounds: int = Field(20, ge=1, description="rounds in all; more than stored goes on")
    window: int | None = Field(None, ge=1, description="rounds submitted at once; default: about a second of them")
    evaluate_every: int = Field(1, ge=1, description="score the held-out examples every so many rounds")
    target_accuracy: float | None = Field(None, gt=0, le=1, description="stop when this is reached")
    patience: int | None = Field(None, ge=1, description="stop after so many scores without a better loss")
    fsync: bool = Field(False, description="make commits survive a power loss")


class TrainConfig(Experiment, Execution):
    """All there is to say about a training run."""

    @property
    def experiment(self) -> Experiment:
        """The part that resuming compares."""
        return Experiment(**{name: getattr(self, name) for name in Experiment.model_fields})


def problems(error: ValidationError) -> list[str]:
    """What is wrong with a configuration, a line a field; an unknown one names the nearest."""
    lines = []
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(field, TrainConfig.model_fields, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else "`roundweave train --help` lists them"
            lines.append(f"unknown field {field!r}; {hint}")
        else:
            message = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "string_pattern_mismatch":
                message = "only letters, digits, '.', '_' and '-', the first a letter, digit or '_'"
            lines.append(f"{field} = {detail['input']!r}: {message}" if field else message)
    return list(dict.fromkeys(lines))
