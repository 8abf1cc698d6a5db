"""The configuration of a run, which defines the flow's parameter, the command's options and the record's JSON.

It has two parts. The *experiment* decides the results; a resumed run must have the same. The *execution* is how
and how long the run is trained, and may change when it is resumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from roundweave.flows.config.algorithms import DEFAULT, EVERY_OPTION, algorithm_table, is_own_algorithm
from roundweave.flows.config.base import Config, Numbers, checked_by
from roundweave.flows.config.deployment import Deployment
from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.exports import Exports
from roundweave.flows.config.gate import Conditions
from roundweave.storage.errors import nearest
from roundweave.storage.parsing import MOST_ROUNDS, span_seconds
from roundweave.storage.places.base import address_of
from roundweave.storage.places.schemes import place_of
from roundweave.storage.runs.names import RECORDED, default_root
from roundweave.storage.upkeep.keep import Keep, policies_spelled
from roundweave.tasks.data.reading import Loading
from roundweave.tasks.executors.base import EXECUTORS

SEEDED = "seeded"
"""The simulated order in which updates may arrive; after the prefix `RECORDED` it is that of a recorded run."""

if TYPE_CHECKING:
    ExecutorName = str
else:
    ExecutorName = Literal[tuple(EXECUTORS)]

Skips = Annotated[bool | Literal["skip"] | None, AfterValidator(bool)]
"""A switch, which is also turned on by the word skip."""

DATE = r"\{date([+-]\d{1,4})?(:[^{}]+)?\}"
"""Matches what stands for the day that a run is trained, such as ``{date}``, ``{date-1}`` or ``{date:%Y-%m}``."""

DAY = "%Y%m%d"
"""The form of a day that names none."""

DECENTRALISED = "d_psgd"
"""The algorithm where none is named beside a topology."""

LONGEST_NAME = 250
"""The most characters of a run's name, as file systems allow 255 in that of its folder."""


class Skipped(Exception):
    """Raised if the configuration says to skip this training; `address` is that of a run that exists."""

    def __init__(self, text: str, address: str) -> None:
        super().__init__(text)
        self.address = address


def _known_place(root: Any) -> Any:
    """The root's address; raises `UsageError` for an unknown kind of place."""
    place_of(root)
    return address_of(root)


def _check_timezone(name: str) -> None:
    """Raise `ValueError` for a name that no time zone has."""
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        regions = (zone for zone in available_timezones() if "/" in zone)
        hint = nearest(name, regions, "give one such as Europe/Berlin")
        raise ValueError(f"{name!r} is no time zone; {hint}") from error


class Placement(Config):
    """Where work is run, and where its results are stored."""

    name: str | None = Field(
        default=None,
        max_length=LONGEST_NAME,
        pattern=r"^\w[\w.\-]*$",
        description="its name, of letters, digits, '_', '-' and '.'; an existing one goes on",
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
    certificates: Path | None = Field(
        default=None,
        description="folder with key and certificates, for a scheduler at tls://; see `roundweave certificates`",
    )
    wait_for_workers: float = Field(
        default=600, ge=0, description="seconds to wait for a worker where none is there, such as in a queue"
    )
    private: bool = Field(default=False, description="keep this machine's other users out of the local cluster")
    executor: ExecutorName = Field(
        default="graph", description=", ".join(entry.about for entry in EXECUTORS.values())
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
        cluster = {"scheduler", "certificates", "workers", "private", "wait_for_workers"}
        return self.model_dump(include=cluster | {"worker_timeout", "plain_ranks"})


class Raced(Config):
    """A strategy's result in a race: its held-out loss after `trained` seconds, which were so many `rounds`.

    `seconds` is the time of a round and `epoch` that of an epoch. `behind` says how many times as long the
    strategy took as the best one to come 95 % of the way from the loss at the start to the lowest loss of the
    race; it is None for a strategy that was out before it came so far, or whose loss did not fall.
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

    name: str | None = Field(
        default=None,
        max_length=LONGEST_NAME,
        pattern=rf"^(\w|{DATE})([\w.\-]|{DATE})*$",
        description="its name, of letters, digits, '_', '-', '.' and {date}, today's; an existing one goes on",
    )
    on_complete: Literal["new", "extend", "skip"] | None = Field(
        default=None,
        description="where the run of this name is complete: another, dated name, so many more rounds, or nothing",
    )
    retain: Annotated[str, checked_by(span_seconds)] | None = Field(
        default=None,
        description="once a run with a dated name has ended, remove those that began longer ago: 12h, 14d or 2w",
    )
    timezone: Annotated[str, checked_by(_check_timezone)] | None = Field(
        default=None,
        description="such as Europe/Berlin, whose date {date} is, and by whose clock schedules go; default: this "
        "machine's",
    )
    on_unchanged: Skips = Field(
        default=False, description="skip: train nothing on the examples of the run that start_from names"
    )
    on_busy: Skips = Field(
        default=False, description="skip: end without a failure where another process writes the run"
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
    patience: int | None = Field(default=None, ge=1, description="stop after so many scores that are not better")
    best: str | None = Field(
        default=None,
        pattern="^((min|max):)?[^:]+$",
        description="the score by which patience and RUN@best go: accuracy, max:f1, min:NAME; default: the loss, "
        "for RUN@best accuracy if it is scored",
    )
    accept: Conditions | None = Field(
        default=None,
        description="conditions at commas, such as 'accuracy >= 0.9, loss <= parent', or FILE.py:fn; a run that "
        "does not meet all is rejected",
    )
    promote: str | None = Field(
        default=None,
        pattern=r"^\w[\w.\-]*$",
        description="an alias of the root, such as champion, that the run takes if it is accepted",
    )
    export: Exports = Field(
        default=(),
        description="where the last round goes if the run is accepted: folders, files and trackers, such as "
        "nightly/{date}, mlflow",
    )
    drift: Literal["tell", "refuse"] = Field(
        default="tell",
        description="where the examples have drifted far from those of the run in start_from: tell, or reject it",
    )
    describe_sites: bool = Field(
        default=False,
        description="let sites tell how often values of columns occur, ten times at least, and, for scores that "
        "need each of them, the held-out outputs and targets",
    )
    deadline: Literal["auto"] | Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="seconds after which a round that has its quorum goes on without the partitions that have not "
        "answered; auto: three deviations more than the median of the rounds before",
    )
    keep: Annotated[str, AfterValidator(lambda keep: str(Keep.of(keep)))] | None = Field(
        default=None,
        description=f"what stays: {policies_spelled()}; default: all, of a server updates:10",
    )
    loader_workers: int = Field(default=0, ge=0, description="processes of each worker that read examples ahead")
    data_memory: ByteSize | None = Field(
        default=None, description="bytes of examples that a process holds, such as 500MB; others are read again"
    )
    fsync: bool = Field(default=False, description="make commits survive a power loss")
    log_file: Path | None = Field(
        default=None, description="a file to which a line of JSON is appended for each commit and event"
    )
    planned: Planned | None = Field(default=None, description="what `roundweave plan` has chosen, and why")
    order: str | None = Field(
        default=None,
        pattern=f"^({SEEDED}|{RECORDED}.+)$",
        description="seeded or recorded:RUN, the order in which updates arrive at a server, inline",
    )
    speeds: Numbers | None = Field(
        default=None, description="how fast each partition is in a seeded order, such as 1,1,0.1"
    )


class TrainConfig(Experiment, Execution, Deployment):
    """The whole configuration of a training run; a value that is no field is an option of its algorithm.

    Raises:
        UsageError: A value is wrong, or there is no such field or option; the line names the nearest.

    Example:
        >>> config = rw.TrainConfig(data="digits", algorithm="fed_prox", mu=0.1, split="shards:2", rounds=10)
    """

    # The JSON schema allows unknown fields, which our own check refuses with a clearer message.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    known: ClassVar[Mapping[str, FieldInfo]] = EVERY_OPTION

    address: str | None = Field(
        default=None, description="where the run lies that goes on; default: by its name under the root"
    )

    schedule: str | None = Field(
        default=None, description="a regular expression of the names of its runs; default: made from its name"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        """Move values that are no fields into the algorithm's table, where they replace options of the same name.

        ``lr = 0.1`` beside ``algorithm = "fed_avg"`` means ``algorithm = {name = "fed_avg", lr = 0.1}``. Values
        that no algorithm takes stay where they are, unless the algorithm is a user's function, which may take any
        option. A topology without an algorithm takes that of topologies, which without one takes a ring.
        """
        if not isinstance(values, dict):
            return values
        values = {"algorithm": DECENTRALISED, **values} if values.get("topology") else values
        table = algorithm_table(values.get("algorithm", DEFAULT))
        if table["name"] == DECENTRALISED and values.get("topology") is None:
            values = {**values, "topology": "ring"}
        own = is_own_algorithm(table["name"])
        moved = {n: v for n, v in values.items() if n not in cls.model_fields and (n in EVERY_OPTION or own)}
        rest = {name: value for name, value in values.items() if name not in moved}
        return rest | {"algorithm": table | moved} if moved else rest

    @model_validator(mode="after")
    def _can_be_repeated(self) -> TrainConfig:
        if self.on_complete and not self.name:
            raise ValueError(f"on_complete = {self.on_complete} is about the run of a name; give a name, too")
        if self.on_unchanged and not self.start_from:
            raise ValueError("on_unchanged is about the run that this one begins with; give start_from, too")
        follows = self.on_complete == "new" or re.search(DATE, self.name or "")
        if self.retain and not (follows or self.schedule or self.address):
            raise ValueError(
                "retain is about runs night after night; give a name with {date}, or on_complete = new"
            )
        if self.on_complete == "extend" and self.algorithm.name == "auto":
            raise ValueError("on_complete = extend adds rounds, and auto counts epochs; name an algorithm")
        if (self.cohort is not None or self.sites) and self.algorithm.name == "auto":
            raise ValueError(
                "auto decides how many partitions there are, and has no cohort or sites; name an algorithm"
            )
        if self.keep and Keep.of(self.keep).recomputes and (self.sites or self.mixed_hardware):
            why = "examples stay at their sites" if self.sites else "machines may give other bits"
            raise ValueError(
                f"keep {self.keep} maps rounds again in any process, and {why}; give states or every:k"
            )
        if self.drift == "refuse" and self.sites and not self.describe_sites:
            raise ValueError("drift = refuse compares columns; have sites tell of them by describe_sites")
        if self.deadline and not EXECUTORS[self.executor].distributed:
            raise ValueError(f"executor {self.executor} waits for each map; leave deadline out, or give graph")
        return self

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used, and how many of them are held; raises `CodeError`."""
        return replace(super().loading, workers=self.loader_workers, memory=self.data_memory)
