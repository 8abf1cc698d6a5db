"""The configuration of a run, which defines the flow's parameter, the command's options and the record's JSON.

It has two parts. The *experiment* decides the results; a resumed run must have the same. The *execution* is how
and how long the run is trained, and may change when it is resumed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from flows.config.algorithms import DEFAULT, EVERY_OPTION, Named, Recombined, fold_options, leave_checks
from flows.config.base import Config, EachOwn, NamedOrOwn, Names, Numbers
from storage.parsing import MOST_PARTITIONS, MOST_ROUNDS, at_commas
from storage.places.addresses import address_of
from storage.places.schemes import place_of
from storage.runs.names import SUFFIX, default_root
from storage.upkeep.keeping import Keep
from tasks.compute.compute import Compute
from tasks.data.reading import Loading
from tasks.data.sources.table import SOURCES
from tasks.data.splits.cohort import Cohort
from tasks.data.splits.deals import SPLITS
from tasks.networks.reference import MODELS
from tasks.networks.scores import LOSS_NAMES, SCORES
from tasks.networks.start import Fork, Start
from tasks.tables import spelled
from tasks.topology import TOPOLOGIES, read_edges
from tasks.user_code import Code, find_code

SEEDED, RECORDED = "seeded", "recorded:"
"""The orders in which updates may arrive: a simulated one, or after the prefix that of a recorded run."""

TODAY = "{date}"
"""Stands in a run's name for the date on which the run begins."""

LONGEST_NAME = 255
"""The most bytes that file systems allow in a folder's name."""


PREPARED = ("transform", "held_out_transform", "collate")
"""The user's functions that prepare examples where they are used."""


def _as_number(given: Any) -> Any:
    """A whole number where a text is one, so that 1 is one partition and 1.0 all of them."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


Share = Annotated[float, Field(gt=0, le=1)]


class Dealing(Config):
    """The examples, how they are split into partitions, and how they are prepared."""

    data: NamedOrOwn | EachOwn = Field(default="digits", description=f"{', '.join(spelled(SOURCES))}, FILE.py:fn")
    target: str | None = Field(default=None, description="column of a table that is learned; default: the last")
    hash_data: bool = Field(
        default=False, description="read all bytes of files larger than 256 MB to show that they are the same"
    )
    held_out: float = Field(
        default=0.1, ge=0, lt=1, description="share of examples held out where the data has none"
    )
    partitions: int = Field(
        default=4, ge=1, le=MOST_PARTITIONS, description="into how many parts the examples are split"
    )
    split: str = Field(
        default="iid", description=f"how examples are dealt to partitions: {', '.join(spelled(SPLITS))}"
    )
    resplit_every: int | None = Field(default=None, ge=1, description="a new random split every so many rounds")
    score_partitions: Share | None = Field(
        default=None,
        description="share of its examples that each partition holds out for a score of its own, such as 0.1",
    )
    seed: int = Field(default=0, ge=0, description="decides every random number")
    transform: NamedOrOwn | None = Field(
        default=None,
        description="FILE.py:fn of an input to train on, or of input and target; its draws are seeded",
    )
    held_out_transform: NamedOrOwn | None = Field(default=None, description="the same for examples to score with")
    collate: NamedOrOwn | None = Field(
        default=None, description="FILE.py:fn that makes a batch of a list of examples; default: they are stacked"
    )

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used, which decides bits; raises `CodeError`."""
        transform, held_out_transform, collate = (
            (given := getattr(self, name)) and find_code(given) for name in PREPARED
        )
        return Loading(transform, held_out_transform, collate)

    @model_validator(mode="after")
    def _dealt(self) -> Dealing:
        if isinstance(self.data, tuple) and self.partitions != len(self.data):
            raise ValueError(f"{len(self.data)} data sets are as many partitions, not {self.partitions}")
        return self


def _known_device(device: str) -> str:
    """The name of a device unchanged; raises `ValueError` for what torch would not take as one."""
    if not re.fullmatch(r"[a-z]\w*(:\d+)?", device):
        raise ValueError(f"{device!r} is no device; give cpu, cuda, cuda:1, mps, xpu or auto")
    return device


class Experiment(Dealing):
    """The part of the configuration that decides a run's results; a resumed run must have the same."""

    model: NamedOrOwn = Field(default="mlp", description=f"{', '.join(MODELS)}, FILE.py:fn")
    model_options: dict[str, Any] = Field(
        default={}, description="keyword arguments of the model, such as hidden", examples=[{"hidden": 256}]
    )
    loss: NamedOrOwn | None = Field(
        default=None, description=f"{', '.join(LOSS_NAMES)}, FILE.py:fn; default: by the targets"
    )
    start_from: str | Fork | Start | None = Field(
        default=None,
        description="a checkpoint, a stored round RUN@12, or one of the newest complete run such as night-*@-1, "
        "to begin with; default: weights by the seed",
    )
    scores: Names | None = Field(
        default=None, description=f"{', '.join(SCORES)}, FILE.py:fn; default: by the loss"
    )
    algorithm: Named = Field(
        default=DEFAULT, description="a name of `roundweave list`, or FILE.py:fn; its options beside it"
    )
    topology: Annotated[str | tuple[tuple[int, int], ...] | None, BeforeValidator(read_edges)] = Field(
        default=None,
        description=f"{', '.join(spelled(TOPOLOGIES))}, FILE.json of edges: whose network is averaged with whose",
    )
    recombined: Recombined | None = Field(
        default=None,
        description="parts in place of the algorithm's, as `roundweave recombine --save` records them",
    )
    cohort: Annotated[Annotated[int, Field(ge=1, strict=True)] | Share | None, BeforeValidator(_as_number)] = (
        Field(
            default=None,
            description="how many partitions take part in a round, such as 10, or a share, such as 0.1",
        )
    )
    cohort_by_size: bool = Field(
        default=False, description="draw partitions with chances in proportion to their examples"
    )
    quorum: int = Field(default=1, ge=1, description="a round with fewer accepted updates fails")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field(
        default="float32", description="type of the parameters"
    )
    device: Annotated[str, AfterValidator(_known_device)] = Field(
        default="cpu",
        description="where maps are computed: cpu, cuda, cuda:1, mps, xpu; auto takes what every worker has",
    )
    precision: Literal["float32", "bf16", "fp16"] = Field(
        default="float32",
        description="of forward passes; bf16 and fp16 are torch's autocast, with parameters in dtype",
    )
    compiled: bool = Field(default=False, description="let torch's compiler make the networks' code")
    threads: int = Field(default=1, ge=1, le=1024, description="torch threads of a map")
    stacked: int = Field(
        default=1, ge=1, description="small partitions to train side by side, with bits of their own"
    )
    ranks: int = Field(
        default=1, ge=1, description="processes that share one network, each with a part of its layers"
    )
    units: Annotated[tuple[str, ...], BeforeValidator(at_commas)] = Field(
        default=(), description="layers whose units ranks share, at commas; default: those that hold the most"
    )
    hybrid: bool = Field(default=False, description="whether ranks share the batch before these layers")
    mixed_hardware: bool = Field(
        default=False, description="accept unequal machines; withdraws the promise of equal bits"
    )

    @property
    def compute(self) -> Compute:
        """How maps are computed; raises `UsageError` for fields that exclude one another."""
        shared = (self.stacked, self.ranks, self.units, self.hybrid)
        return Compute(self.threads, *shared, self.device, self.precision, self.compiled)

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions among the algorithm, its map, reduce and apply."""
        return (*self.algorithm.code, *(self.recombined.code if self.recombined else ()))

    @property
    def drawn(self) -> Cohort | None:
        """The cohort of a round; None if all partitions take part."""
        share = self.cohort if self.cohort is not None else 1.0
        size = share if isinstance(share, int) else max(1, round(share * self.partitions))
        return None if size == self.partitions else Cohort(size, self.cohort_by_size)

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if isinstance(self.cohort, int) and self.cohort > self.partitions:
            raise ValueError(f"a cohort of {self.cohort} is more than the {self.partitions} partitions")
        if self.cohort is not None and self.topology is not None:
            raise ValueError("with a topology each partition trains its network in each round; leave cohort out")
        if self.cohort_by_size and self.cohort is None:
            raise ValueError("cohort_by_size says how a cohort is drawn; give a cohort, too")
        if self.quorum > (taking_part := self.drawn.size if self.drawn else self.partitions):
            raise ValueError(f"quorum {self.quorum} is more than the {taking_part} partitions of a round")
        if self.precision != "float32" and self.dtype != "float32":
            raise ValueError(f"precision {self.precision} is for parameters in float32, not in {self.dtype}")
        return self


def _known_place(root: Any) -> Any:
    """The root's address; raises `UsageError` for an unknown kind of place."""
    place_of(root)
    return address_of(root)


def _known_keep(keep: str) -> str:
    """The value of `keep` in its usual spelling; raises `UsageError` for a wrong one."""
    return str(Keep.of(keep))


def _known_order(order: str) -> str:
    """The order of arrival unchanged; raises `ValueError` for an unknown one."""
    if order != SEEDED and not order.removeprefix(RECORDED):
        raise ValueError("recorded needs a run: recorded:RUN")
    if order != SEEDED and not order.startswith(RECORDED):
        raise ValueError(f"{order!r} is no order of arrival; there are {SEEDED} and {RECORDED}RUN")
    return order


def _short_enough(name: str) -> str:
    """The name unchanged; raises `ValueError` if it is too long for a folder's name."""
    if len(os.fsencode(f"{name}{SUFFIX}")) > LONGEST_NAME:
        raise ValueError(f"name {name[:20]}… is too long; give one of {LONGEST_NAME - len(SUFFIX)} bytes at most")
    return name


class Placement(Config):
    """Where work is run, and where its results are stored."""

    name: Annotated[str, AfterValidator(_short_enough)] | None = Field(
        default=None, pattern=r"^[\w][\w.\-]*$", description="name of the run; an existing one goes on"
    )
    root: Annotated[str, BeforeValidator(_known_place)] = Field(
        default_factory=default_root, description="folder of all runs, or s3://BUCKET/…"
    )
    workers: int = Field(default=2, ge=1, description="processes of the local Dask cluster")
    scheduler: str | None = Field(
        default=None,
        description="address or file of a running Dask scheduler; slurm:OPTIONS.toml or the class of a cluster, "
        "such as dask_jobqueue.PBSCluster:OPTIONS.toml, starts one",
    )
    wait_for_workers: float = Field(
        default=600, ge=0, description="seconds to wait for a worker where none is there, such as in a queue"
    )
    private: bool = Field(default=False, description="keep this machine's other users out of the local cluster")
    executor: Literal["graph", "ranks", "auto", "inline"] = Field(
        default="graph",
        description="on a Dask cluster by tasks, by ranks that stay, by what is better; or a loop in this process",
    )
    plain_ranks: bool = Field(
        default=False,
        description="let ranks on several machines talk unencrypted, though the cluster's own talk is not",
    )
    worker_timeout: float = Field(
        default=60, ge=10, description="seconds without a heartbeat after which a worker's work is done elsewhere"
    )

    @property
    def placed(self) -> dict[str, Any]:
        """The fields that `open_executor` takes as keyword arguments."""
        fields = {"scheduler", "workers", "worker_timeout", "private", "wait_for_workers", "plain_ranks"}
        return self.model_dump(include=fields)


class Raced(Config):
    """A strategy's result in a race: its held-out loss after `trained` seconds, which were so many `rounds`.

    `seconds` is the time of a round and `epoch` that of an epoch. `behind` says how many times as long the
    strategy took as the best one to come 95 % of the way from the loss at the start to the lowest loss of the
    race; it is None for a strategy that was out before it came so far.
    """

    loss: float
    accuracy: float | None = None
    trained: float
    rounds: float
    seconds: float
    epoch: float
    behind: float | None = None


class Planned(Config):
    """How a run's strategy was chosen: the results of the race by strategy, and why others were refused."""

    strategy: str
    workers: int
    rounds_of_epoch: float
    raced: dict[str, Raced]
    refused: dict[str, str] = Field(default_factory=dict)
    reason: str


class Execution(Placement):
    """How and how long a run is trained; it may change when the run is resumed."""

    name: Annotated[str, AfterValidator(_short_enough)] | None = Field(
        default=None,
        pattern=r"^(\w|\{date\})([\w.\-]|\{date\})*$",
        description="name of the run, {date} in it is today's; an existing one goes on",
    )
    on_complete: Literal["new", "extend", "skip"] | None = Field(
        default=None,
        description="where the run of this name is complete: another, dated name, so many more rounds, or nothing",
    )
    on_busy: Literal["skip"] | None = Field(
        default=None, description="where another process writes the run: end without a failure"
    )
    rounds: int = Field(
        default=20, ge=1, le=MOST_ROUNDS, description="rounds in all, of a server arrivals; more goes on"
    )
    window: int | None = Field(
        default=None, ge=1, description="rounds submitted at once; default: about a second of them"
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="score the held-out examples every so many rounds; default: 1, of a server ten each partition",
    )
    target_accuracy: float | None = Field(default=None, gt=0, le=1, description="stop when this is reached")
    patience: int | None = Field(default=None, ge=1, description="stop after so many scores without a better loss")
    keep: Annotated[str, AfterValidator(_known_keep)] | None = Field(
        default=None,
        description="what stays: all (the default), states, updates:k (a server's: updates:10), every:k, last:n",
    )
    loader_workers: int = Field(default=0, ge=0, description="processes of each worker that read examples ahead")
    data_memory: ByteSize | None = Field(
        default=None, description="bytes of examples that a process holds, such as 500MB; others are read again"
    )
    fsync: bool = Field(default=False, description="make commits survive a power loss")
    planned: Planned | None = Field(default=None, description="what `roundweave plan` has chosen, and why")
    order: Annotated[str, AfterValidator(_known_order)] | None = Field(
        default=None, description="in which updates arrive at a server, inline: seeded, or recorded:RUN"
    )
    speeds: Numbers | None = Field(
        default=None, description="how fast each partition is in a seeded order, such as 1,1,0.1"
    )


class TrainConfig(Experiment, Execution):
    """The whole configuration of a training run; a value that is no field is an option of its algorithm.

    Raises:
        UsageError: A value is wrong, or there is no such field or option; the line names the nearest.

    Example:
        >>> config = rw.TrainConfig(data="digits", algorithm="fed_prox", mu=0.1, split="shards:2", rounds=10)
    """

    model_config = ConfigDict(json_schema_extra=leave_checks)

    known: ClassVar[Mapping[str, FieldInfo]] = EVERY_OPTION

    address: str | None = Field(
        default=None, description="where the run lies that goes on; default: by its name under the root"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        return fold_options(values, set(cls.model_fields)) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _can_be_repeated(self) -> TrainConfig:
        if self.on_complete and not self.name:
            raise ValueError(f"on_complete = {self.on_complete} is about the run of a name; give a name, too")
        if self.on_complete == "extend" and self.algorithm.name == "auto":
            raise ValueError("on_complete = extend adds rounds, and auto counts epochs; name an algorithm")
        if self.cohort is not None and self.algorithm.name == "auto":
            raise ValueError(
                "auto decides how many partitions there are, so that none sits out; name an algorithm"
            )
        return self

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used, and how many of them are held; raises `CodeError`."""
        return replace(super().loading, workers=self.loader_workers, memory=self.data_memory)

    @property
    def experiment(self) -> Experiment:
        """The fields that a resumed run must have in common with the recorded one."""
        return Experiment(**{name: getattr(self, name) for name in Experiment.model_fields})
