"""The configuration of a run, which defines the flow's parameter, the command's options and the record's JSON.

It has two parts. The *experiment* decides the results; a resumed run must have the same. The *execution* is how
and how long the run is trained, and may change when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from roundweave.flows.config.algorithms import DEFAULT, EVERY_OPTION, algorithm_table, is_own_algorithm
from roundweave.flows.config.base import Config
from roundweave.flows.config.experiment import Experiment
from roundweave.flows.config.plugins import active_plugins, check_fits, plugin_classes, through, with_plugins
from roundweave.storage.parsing import MOST_ROUNDS, UNITS, at_commas, span_seconds
from roundweave.storage.places.base import address_of
from roundweave.storage.places.schemes import place_of
from roundweave.storage.runs.names import default_root
from roundweave.storage.upkeep.keep import Keep, policies_spelled
from roundweave.tasks.data.reading import Loading
from roundweave.tasks.executors.base import EXECUTORS

if TYPE_CHECKING:
    ExecutorName = str
else:
    ExecutorName = Literal[tuple(EXECUTORS)]

LONGEST_NAME = 250
"""The most characters of a run's name, as file systems allow 255 in that of its folder."""


def _known_place(root: Any) -> Any:
    """The root's address; raises `UsageError` for an unknown kind of place."""
    place_of(root)
    return address_of(root)


class Location(Config):
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


def _in_seconds(given: Any) -> Any:
    """The seconds of a text such as ``10m``; any other value unchanged. Raises `ValueError`."""
    return span_seconds(given) if isinstance(given, str) and given[-1:].isalpha() else given


Duration = Annotated[float, BeforeValidator(_in_seconds), Field(ge=0, le=366 * UNITS["d"])]
"""Seconds, or a text with a unit such as ``10m`` or ``2h``; a year at most."""


class Deployment(Config):
    """How `serve` and `deploy` have a run trained. `train` and `resume` try once, however long it takes."""

    retries: int = Field(
        default=0, ge=0, le=1000, description="how often a deployment's run that failed goes on by itself"
    )
    retry_delay: Duration = Field(default=0, description="seconds until then, or such as 10m")
    timeout: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="seconds, or such as 2h, after which an attempt of a deployment's run fails"
    )
    tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(at_commas)] = Field(
        default=(), description="tags of the deployment and of its runs at Prefect"
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="runs of a deployment at once; default: one where it is served, else any"
    )


@partial(with_plugins, taken=(*Deployment.model_fields, "address"))
class Execution(Location):
    """How and how long a run is trained; it may change when the run is resumed."""

    name: str | None = Field(
        default=None,
        max_length=LONGEST_NAME,
        pattern=r"^(\w|\{[^{}]*\})([\w.\-]|\{[^{}]*\})*$",
        description="its name, of letters, digits, '_', '-', '.' and {date}, today's; an existing one goes on",
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
    best: str | None = Field(
        default=None,
        pattern="^((min|max):)?[^:]+$",
        description="the score by which patience and RUN@best go: accuracy, max:f1, min:NAME; default: the loss, "
        "for RUN@best accuracy if it is scored",
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

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        """Move values that are no fields into the algorithm's table, where they replace options of the same name.

        ``lr = 0.1`` beside ``algorithm = "fed_avg"`` means ``algorithm = {name = "fed_avg", lr = 0.1}``. Values
        that no algorithm takes stay where they are, unless the algorithm is a user's function, which may take any
        option. Plugins add what the values imply.
        """
        if not isinstance(values, dict):
            return values
        values = through(values, plugin_classes(), "imply")
        table = algorithm_table(values.get("algorithm", DEFAULT))
        own = is_own_algorithm(table["name"])
        moved = {n: v for n, v in values.items() if n not in cls.model_fields and (n in EVERY_OPTION or own)}
        rest = {name: value for name, value in values.items() if name not in moved}
        return rest | {"algorithm": table | moved} if moved else rest

    @model_validator(mode="after")
    def _plugins_fit(self) -> TrainConfig:
        check_fits(self, active_plugins(self))
        return self

    @property
    def loading(self) -> Loading:
        """How examples are prepared where they are used, and how many of them are held; raises `CodeError`."""
        return replace(super().loading, workers=self.loader_workers, memory=self.data_memory)
