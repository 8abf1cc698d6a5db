"""``roundweave.train``: the flow that trains, with all that it needs around it."""

from __future__ import annotations

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.serving.ahead import ahead
from flows.stored import Run


def train(config: TrainConfig) -> Run:
    """Train as a Prefect flow: on the user's Prefect API, or with a server whose files lie under the root.

    Raises `RoundweaveError`; what is wrong with the configuration is said before anything is started.
    """
    resolved = resolve(config)
    with ahead(resolved):
        from flows.training.flow import train_flow  # Prefect is slow to import, and its server slower to start

        return Run(train_flow(resolved.config).path, config.root)
