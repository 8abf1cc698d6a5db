"""The part of the configuration that decides a run's results: the examples, and what is trained of them."""

from __future__ import annotations

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
    """Options by partition, of a file if one is named; raises `ValueError` for another text."""
    if isinstance(read := read_values(given, info), str):
        raise ValueError(f"partition_options {given!r} is no FILE.toml or FILE.json of a table for each partition")
    return {str(key): value for key, value in read.items()} if isinstance(read, dict) else read


PartitionOptions = Annotated[str | dict[str, dict[str, JsonValue]], BeforeValidator(_read_options)]


Loss = Annotated[
    Annotated[NamedOrOwn, Own(LOSS_NAMES.__contains__)] | None,
    Field(description=f"{', '.join(LOSS_NAMES)}, FILE.py:fn; default: by the targets"),
]
Model = Annotated[NamedOrOwn, Own(MODELS.__contains__)]
Data = Annotated[NamedOrOwn | EachOwn, DATA]


class DataConfig(Config):
    """The examples to run a network on, and how they are prepared."""

    data: Data | None = Field(
        default=None, description="as `roundweave train --data`; default: of the run that is merged"
    )
    data_options: dict[str, JsonValue] = Field(
        default={},
        description="keyword arguments of the function of data, such as day; {date} is today, {date-1} yesterday",
        examples=[{"day": "{date-1}"}],
    )
    target: str | None = Field(default=None, description="column of a table that is learned; default: the last")
    held_out: float = Field(
        default=0.1, ge=0, lt=1, description="share of examples held out where the data has none"
    )
    transform: NamedOrOwn | None = Field(
        default=None,
        description="FILE.py:fn of an input to train on, or of input and target; its draws are seeded",
    )
    held_out_transform: NamedOrOwn | None = Field(default=None, description="the same for examples to score with")
    collate: NamedOrOwn | None = Field(
        default=None, description="FILE.py:fn that makes a batch of a list of examples; default: they are stacked"
    )


@with_plugins
class Dealing(DataConfig):
    """The examples, how they are split into partitions, and how they are prepared."""

    data: Data = Field(default="digits", description=f"{', '.join(spelled(SOURCES))}, FILE.py:fn")
    hash_data: bool = Field(
        default=False, description="read all bytes of files larger than 256 MB to show that they are the same"
    )
    partitions: int = Field(
        default=4, ge=1, le=MOST_PARTITIONS, description="into how many parts the examples are split"
    )
    split: str = Field(
        default="iid", description=f"how examples are dealt to partitions: {', '.join(spelled(SPLITS))}"
    )
    resplit_every: int | None = Field(default=None, ge=1, description="a new random split every so many rounds")
    seed: int = Field(default=0, ge=0, description="decides every random number")
    split_seed: int | None = Field(default=None, ge=0, description="decides the split; default: seed")
    partition_options: PartitionOptions | None = Field(
        default=None, description="FILE.toml, FILE.json: a table for each partition, by its name or number"
    )

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used, which decides bits; raises `CodeError`."""
        own: dict[str, Any] = {n: (given := getattr(self, n)) and find_code(given) for n in PREPARED}
        return Loading(**own)

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        """The values with what they imply for plugins."""
        return through(values, plugin_classes(), "imply") if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _dealt(self) -> Dealing:
        if isinstance(self.data, tuple) and self.partitions != len(self.data):
            raise ValueError(f"{len(self.data)} data sets are as many partitions, not {self.partitions}")
        return self


@with_plugins
class Experiment(Dealing):
    """The part of the configuration that decides a run's results; a resumed run must have the same."""

    model: Model = Field(default="mlp", description=f"{', '.join(MODELS)}, FILE.py:fn")
    model_options: dict[str, Any] = Field(
        default={}, description="keyword arguments of the model, such as hidden", examples=[{"hidden": 256}]
    )
    init_seed: int | None = Field(default=None, ge=0, description="decides the initial weights; default: seed")
    loss: Loss = None
    start_from: str | Fork | Start | None = Field(
        default=None,
        description="a checkpoint, a stored round RUN@12, or one of the newest complete run such as night-*@-1, "
        "to begin with; default: weights by the seed",
    )
    scores: Annotated[Names | None, Own(SCORES.__contains__, many=True)] = Field(
        default=None, description=f"{', '.join(SCORES)}, FILE.py:fn; default: by the loss"
    )
    algorithm: Annotated[Named, Own(ALGORITHMS.__contains__)] = Field(
        default=DEFAULT, description="a name of `roundweave list`, or FILE.py:fn; its options beside it"
    )
    recombined: Annotated[Recombined | None, Own(is_part)] = Field(
        default=None,
        description="parts in place of the algorithm's, as `roundweave recombine --save` records them",
    )
    quorum: int = Field(default=1, ge=1, description="a round with fewer accepted updates fails")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field(
        default="float32", description="type of the parameters"
    )
    threads: int = Field(default=1, ge=1, le=1024, description="torch threads of a map")
    mixed_hardware: bool = Field(
        default=False, description="accept unequal machines; withdraws the promise of equal bits"
    )
    plugins: Annotated[tuple[OwnPlugin, ...], BeforeValidator(at_commas), Own()] = Field(
        default=(),
        description="FILE.py:Class of plugins of your own, or a JSON list of tables of name and options",
    )

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions among the algorithm, its parts and what wraps them."""
        beside = self.recombined.code if self.recombined else ()
        return (*self.algorithm.code, *beside, *(each.code for each in self.plugins if each.decides))

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.init_seed is not None and self.algorithm.options.get("init") == "per-partition":
            raise ValueError("init = per-partition draws weights by seed; leave init_seed out")
        return self
