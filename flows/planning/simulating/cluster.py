"""The configuration of a cluster that is not here."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from flows.config.problems import Config


class SimulatedCluster(Config):
    """Machines, what is between them, and how many of their maps are slow."""

    model_config = ConfigDict(title="Simulated cluster")

    cores: int = Field(default=8, ge=1, description="cores of a machine, of which each worker has one")
    bandwidth: float = Field(default=1.25e9, gt=0, description="bytes a second of a machine's link, each way")
    latency: float = Field(default=1e-4, ge=0, description="seconds of a message between machines")
    stragglers: float = Field(default=0, ge=0, le=1, description="share of maps that are slow")
    tail: float = Field(
        default=2,
        gt=0,
        description="shape of the Pareto law of how many times as long those take; less is heavier",
    )
