"""The configuration of a run. It defines the flow's parameter, the command's options and the record's JSON.

The *experiment* decides the results: a resumed run must have the same. The *execution* is how and how long the run
is trained: it may change when the run is resumed.
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
"""The most characters of a run's name. File systems allow 255 in the name of its folder."""


def _known_place(root: Any) -> Any:
    """Return the root's address. Raises `UsageError` for an unknown kind of place."""
    place_of(root)
    return address_of(root)


class Location(Config):
    """Where work runs, and where its results are stored."""

    name: str | None = Field(
        default=None,
        max_length=LONGEST_NAME,
        pattern=r"^\w[\w.\-]*$",
        description="a run name of letters, digits, '_', '-' and '.'; the result is stored as this run",
    )
    root: Annotated[str, BeforeValidator(_known_place)] = Field(
        default_factory=default_root, description="folder in which runs are stored, or s3://BUCKET/…"
    )
    workers: int = Field(default=2, ge=1, description="number of worker processes of the local Dask cluster")
    scheduler: str | None = Field(
        default=None,
        description="address or file of a running Dask scheduler, or a cluster to start: slurm:OPTIONS.toml or "
        "CLASS:OPTIONS.toml (a class of clusters)",
    )
    certificates: Path | None = Field(
        default=None,
        description="folder with TLS key and certificates for a tls:// scheduler; see `roundweave certificates`",
    )
    wait_for_workers: float = Field(
        default=600, ge=0, description="seconds to wait until workers join, for example from a batch queue"
    )
    private: bool = Field(default=False, description="protect the local Dask cluster from other users (TLS)")
    executor: ExecutorName = Field(
        default="graph",
        description="executor: " + ", ".join(f"{name} ({each.about})" for name, each in EXECUTORS.items()),
    )
    plain_ranks: bool = Field(
        default=False,
        description="allow unencrypted traffic between ranks on different machines of an encrypted cluster",
    )
    worker_timeout: float = Field(
        default=60, ge=10, description="seconds without a heartbeat before other workers take over the tasks"
    )

    @property
    def placed(self) -> dict[str, Any]:
        """The fields that `open_executor` takes as keyword arguments."""
        cluster = {"scheduler", "certificates", "workers", "private", "wait_for_workers"}
        return self.model_dump(include=cluster | {"worker_timeout", "plain_ranks"})


def _in_seconds(given: Any) -> Any:
    """Return the seconds of a text such as ``10m``; any other value unchanged. Raises `ValueError`."""
    return span_seconds(given) if isinstance(given, str) and given[-1:].isalpha() else given


Duration = Annotated[float, BeforeValidator(_in_seconds), Field(ge=0, le=366 * UNITS["d"])]
"""Seconds, or a text with a unit such as ``10m`` or ``2h``, at most a year."""


class Deployment(Config):
    """How `serve` and `deploy` train a run. `train` and `resume` try once, however long a run takes."""

    retries: int = Field(
        default=0, ge=0, le=1000, description="number of times that a failed run of a deployment is retried"
    )
    retry_delay: Duration = Field(default=0, description="seconds before each retry, or such as 10m")
    timeout: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="time limit for an attempt of a deployment's run: seconds, or such as 2h"
    )
    tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(at_commas)] = Field(
        default=(), description="Prefect tags of the deployment and of its runs"
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="concurrent runs of a deployment; default: 1 with serve, else no limit"
    )


@partial(with_plugins, taken=(*Deployment.model_fields, "address"))
class Execution(Location):
    """How and how long a run is trained. These values may change when the run is resumed."""

    name: str | None = Field(
        default=None,
        max_length=LONGEST_NAME,
        pattern=r"^(\w|\{[^{}]*\})([\w.\-]|\{[^{}]*\})*$",
        description="a run name of letters, digits, '_', '-', '.' and {date} (today); an existing run is resumed",
    )
    rounds: int = Field(
        default=20,
        ge=1,
        le=MOST_ROUNDS,
        description="total number of rounds (parameter server: arrivals); a larger number continues a run",
    )
    window: int | None = Field(
        default=None, ge=1, description="rounds submitted to the cluster at once; default: about a second of work"
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="score the held-out examples every N rounds; default: 1 (server: 10 updates per partition)",
    )
    best: str | None = Field(
        default=None,
        pattern="^((min|max):)?[^:]+$",
        description="the score that decides patience and RUN@best: accuracy, max:f1, min:NAME; default: the loss "
        "(RUN@best: accuracy, if scored)",
    )
    keep: Annotated[str, AfterValidator(lambda keep: str(Keep.of(keep)))] | None = Field(
        default=None,
        description=f"tensors that stay stored: {policies_spelled()}; default: all (server: updates:10)",
    )
    loader_workers: int = Field(default=0, ge=0, description="processes per worker that prefetch examples")
    data_memory: ByteSize | None = Field(
        default=None, description="memory for examples in a process, such as 500MB; others are read again"
    )
    fsync: bool = Field(default=False, description="sync each commit to disk, so that a power loss cannot undo it")


class TrainConfig(Experiment, Execution, Deployment):
    """The whole configuration of a training run. A value that is no field is an option of the algorithm.

    The fields are the options of ``roundweave train`` under the same names.

    Raises:
        UsageError: A value is wrong, or a field or option is unknown. The message names the nearest one.

    Example:
        >>> config = rw.TrainConfig(data="digits", algorithm="fed_prox", mu=0.1, split="shards:2", rounds=10)
    """

    # The JSON schema allows unknown fields, which our own check refuses with a clearer message.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    known: ClassVar[Mapping[str, FieldInfo]] = EVERY_OPTION

    address: str | None = Field(
        default=None, description="address of the run to resume; default: found by its name under the root"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, values: Any) -> Any:
        """Move values that are no fields into the algorithm's table. They replace options of the same name there.

        ``lr = 0.1`` beside ``algorithm = "fed_avg"`` means ``algorithm = {name = "fed_avg", lr = 0.1}``. Values
        that no algorithm takes stay, unless the algorithm is a user's function, which may take any option. Plugins
        add what the values imply.
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
        """How examples are prepared where they are used, and how many are held in memory. Raises `CodeError`."""
        return replace(super().loading, workers=self.loader_workers, memory=self.data_memory)
