"""The part of the configuration that decides a run's results: the examples, and the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, model_validator

from roundweave.flows.config.algorithms import DEFAULT, Named, Recombined, is_part
from roundweave.flows.config.base import DATA, Config, EachOwn, NamedOrOwn, Names, Own, read_values
from roundweave.flows.config.plugins import OwnPlugin, plugin_classes, through, with_plugins
from roundweave.storage.parsing import MOST_PARTITIONS, at_commas
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.data.reading import Loading
from roundweave.tasks.data.sources.table import SOURCES
from roundweave.tasks.data.splits.deals import SPLITS
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSS_NAMES, SCORES
from roundweave.tasks.networks.start import Fork, Start
from roundweave.tasks.own_code.code import Code, find_code
from roundweave.tasks.own_code.tables import spelled

PREPARED = ("transform", "held_out_transform", "collate")
"""The user's functions that prepare examples where they are used."""


def _read_options(given: Any, info: ValidationInfo) -> Any:
    """Return options by partition, from a file if one is named. Raises `ValueError` for another text."""
    if isinstance(read := read_values(given, info), str):
        raise ValueError(f"partition_options {given!r} is no FILE.toml or FILE.json of a table for each partition")
    return {str(key): value for key, value in read.items()} if isinstance(read, dict) else read


def _no_value(given: Any) -> Any:
    """Return the name of data.

    Raises `ValueError` for data themselves: a sequence would be one data set a partition.
    """
    if given is None or callable(given) or isinstance(given, str | float | int | Code | list | tuple | Mapping):
        return given
    raise ValueError(
        f"data = a {type(given).__name__}: give a function that returns (inputs, targets) or a data set"
    )


PartitionOptions = Annotated[str | dict[str, dict[str, JsonValue]], BeforeValidator(_read_options)]


Loss = Annotated[
    Annotated[NamedOrOwn, Own(LOSS_NAMES.__contains__)] | None,
    Field(description=f"loss function: {', '.join(LOSS_NAMES)}, FILE.py:fn; default: by the type of the targets"),
]
Model = Annotated[NamedOrOwn, Own(MODELS.__contains__)]
Data = Annotated[NamedOrOwn | EachOwn, BeforeValidator(_no_value), DATA]


class DataConfig(Config):
    """The examples to run a network on, and how they are prepared."""

    data: Data | None = Field(
        default=None, description="examples, as in `roundweave train --data`; default: those of the merged run"
    )
    data_options: dict[str, JsonValue] = Field(
        default={},
        description="keyword arguments of the data function, such as day; {date} is today, {date-1} yesterday",
        examples=[{"day": "{date-1}"}],
    )
    target: str | None = Field(default=None, description="column of a table to predict; default: the last")
    columns: Annotated[tuple[str, ...], BeforeValidator(at_commas)] | None = Field(
        default=None, description="input columns of a table; default: all except the target"
    )
    encode: Literal["one-hot", "ordinal"] | None = Field(
        default=None, description="encoding of text columns in the inputs of a table"
    )
    held_out: float = Field(
        default=0.1, ge=0, lt=1, description="fraction of examples to hold out, if the data has no test set"
    )
    transform: NamedOrOwn | None = Field(
        default=None,
        description="FILE.py:fn applied to each training input, or to input and target (augmentation, seeded)",
    )
    held_out_transform: NamedOrOwn | None = Field(default=None, description="FILE.py:fn for the held-out inputs")
    collate: NamedOrOwn | None = Field(
        default=None, description="FILE.py:fn that makes a batch from a list of examples; default: stack them"
    )


@with_plugins
class Dealing(DataConfig):
    """The examples, how they are split into partitions, and how they are prepared."""

    data: Data = Field(default="digits", description=f"training data: {', '.join(spelled(SOURCES))}, FILE.py:fn")
    hash_data: bool = Field(default=False, description="hash all bytes of data above 256 MB, to detect any change")
    partitions: int = Field(
        default=4, ge=1, le=MOST_PARTITIONS, description="number of partitions (clients) of the training examples"
    )
    split: str = Field(
        default="iid", description=f"split of the examples into partitions: {', '.join(spelled(SPLITS))}"
    )
    resplit_every: int | None = Field(default=None, ge=1, description="rounds after which a new split is drawn")
    seed: int = Field(default=0, ge=0, description="seed of all random numbers")
    split_seed: int | None = Field(default=None, ge=0, description="seed of the split and hold-out; default: seed")
    partition_options: PartitionOptions | None = Field(
        default=None, description="FILE.toml or FILE.json: a table of data function options per partition"
    )

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used. Raises `CodeError`. The value decides bits."""
        own: dict[str, Any] = {n: (given := getattr(self, n)) and find_code(given) for n in PREPARED}
        return Loading(**own)

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        """Return the values, and the values that they imply for plugins."""
        return through(values, plugin_classes(), "imply") if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _dealt(self) -> Dealing:
        if isinstance(self.data, tuple) and self.partitions != len(self.data):
            raise ValueError(f"{len(self.data)} data sets make as many partitions, not {self.partitions}")
        return self


@with_plugins
class Experiment(Dealing):
    """The part of the configuration that decides a run's results. A resumed run must have the same."""

    model: Model = Field(default="mlp", description=f"network: {', '.join(MODELS)}, FILE.py:fn")
    model_options: dict[str, Any] = Field(
        default={}, description="keyword arguments of the model, such as hidden", examples=[{"hidden": 256}]
    )
    init_seed: int | None = Field(default=None, ge=0, description="seed of the initial weights; default: seed")
    loss: Loss = None
    start_from: str | Fork | Start | None = Field(
        default=None,
        description="initial weights: a checkpoint, a stored round RUN@12, or the newest complete run "
        "nightly-*@-1; default: drawn by the seed",
    )
    scores: Annotated[Names | None, Own(SCORES.__contains__, many=True)] = Field(
        default=None, description=f"scores to compute: {', '.join(SCORES)}, FILE.py:fn; default: by the loss"
    )
    algorithm: Annotated[Named, Own(ALGORITHMS.__contains__)] = Field(
        default=DEFAULT, description="training algorithm: a name from `roundweave list algorithms`, or FILE.py:fn"
    )
    recombined: Annotated[Recombined | None, Own(is_part)] = Field(
        default=None,
        description="parts in place of the algorithm's, as `roundweave recombine --save` records them",
    )
    quorum: int = Field(default=1, ge=1, description="least number of accepted updates; a round with fewer fails")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field(
        default="float32", description="data type of the parameters"
    )
    threads: int = Field(default=1, ge=1, le=1024, description="number of torch threads that train a partition")
    mixed_hardware: bool = Field(
        default=False, description="accept workers with different hardware; results may then differ in their bits"
    )
    plugins: Annotated[tuple[OwnPlugin, ...], BeforeValidator(at_commas), Own()] = Field(
        default=(), description="your own plugins: FILE.py:Class, or a JSON list of tables with name and options"
    )

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions in the algorithm, its parts and its wrappers."""
        beside = self.recombined.code if self.recombined else ()
        return (*self.algorithm.code, *beside, *(each.code for each in self.plugins if each.decides))

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.init_seed is not None and self.algorithm.options.get("init") == "per-partition":
            raise ValueError("init = per-partition draws weights by seed; leave init_seed out")
        return self
