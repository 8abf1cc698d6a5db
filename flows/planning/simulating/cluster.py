"""The configuration of a cluster that is not here."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from flows.config.problems import Config


class SimulatedCluster(Config):
    """Machines and what is between them, what goes wrong on them, and how rounds deal with it."""

    model_config = ConfigDict(title="Simulated cluster")

    machines: int | None = Field(
        default=None,
        ge=1,
        description="machines in all, for any number of workers; default: a core for each worker",
    )
    cores: int = Field(default=8, ge=1, description="cores of a machine; more workers than these share them")
    bandwidth: float = Field(default=1.25e9, gt=0, description="bytes a second of a machine's link, each way")
    latency: float = Field(default=1e-4, ge=0, description="seconds of a message between machines")
    store: float | None = Field(
        default=None,
        gt=0,
        description="bytes a second that the store takes of all together; default: of each its own",
    )
    stragglers: float = Field(default=0, ge=0, le=1, description="share of maps that are slow")
    tail: float = Field(
        default=2,
        gt=0,
        description="shape of the Pareto law of how many times as long those take; less is heavier",
    )
    failures: float | None = Field(
        default=None, gt=0, description="mean seconds between failures of one worker; default: none fails"
    )
    detection: float = Field(default=10, ge=0, description="seconds until a failure is noticed")
    restart: float = Field(default=5, ge=0, description="seconds until a worker is there again")
    fan_in: int | None = Field(
        default=None, ge=2, description="updates that a node of the tree reduces; default: one node reduces all"
    )
    reducers: int = Field(default=1, ge=1, description="workers that reduce, each its part of every update")
    partitions_per_task: int = Field(default=1, ge=1, description="partitions that a worker maps in a round")
    backups: float = Field(
        default=0, ge=0, lt=1, description="share of maps, the last ones, that are done a second time elsewhere"
    )
    wait_for: float = Field(
        default=1, gt=0, le=1, description="share of updates after which a round goes on without the rest"
    )
