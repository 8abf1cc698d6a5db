"""``roundweave.train``: the flow that trains, with all that it needs around it."""

from __future__ import annotations

from flows.config.train import TrainConfig
from flows.planning.automatic import settled
from flows.reporting.bar import bar_of_rounds
from flows.serving.ahead import ahead
from flows.stored import Run


def train(config: TrainConfig) -> Run:
    """Train as a Prefect flow: on the user's Prefect API, or with a server whose files lie under the root.

    Prefect only shows how it goes: whatever becomes of its server, the training goes on. Raises `RoundweaveError`;
    what is wrong with the configuration is said before anything is started.
    """
    with bar_of_rounds(config.rounds):
        resolved = settled(config)
        with ahead(resolved):
            from flows.reporting.engine import run_flow  # Prefect is slow to import
            from flows.training.flow import train_flow

            return run_flow(train_flow, resolved.config)
