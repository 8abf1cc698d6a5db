"""``roundweave.train``: the flow that trains, with all that it needs around it."""

from __future__ import annotations

from flows.config.scheduled import Skipped, address
from flows.config.train import TrainConfig
from flows.planning.automatic import settled
from flows.reporting.bar import bar_of_rounds
from flows.reporting.listening import begun, going_on, notice
from flows.serving.ahead import ahead
from flows.stored import Run


class Interrupted(KeyboardInterrupt):
    """An interrupt as a person wants to see it: a notebook shows its line alone, a script two frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted; {self}"]


def train(config: TrainConfig, bar: bool = True) -> Run:
    """Train as a Prefect flow: on the user's Prefect API, or with a server whose files lie under the root.

    Prefect only shows how it goes: whatever becomes of its server, the training goes on. Raises `RoundweaveError`;
    what is wrong with the configuration is said before anything is started. Without a `bar` only notices show.
    """
    before = len(begun)
    try:
        return _train(config, bar)
    except KeyboardInterrupt:
        raise Interrupted(going_on(begun[-1] if len(begun) > before else None)) from None


def _train(config: TrainConfig, bar: bool) -> Run:
    with bar_of_rounds(config.rounds, bar):
        try:
            resolved = settled(config)
        except Skipped as skipped:
            notice(str(skipped))
            return Run(skipped.address, config.root)
        with ahead(resolved):
            from flows.reporting.engine import run_flow  # Prefect is slow to import
            from flows.training.flow import train_flow

            run = run_flow(train_flow, resolved.config)
            return run if isinstance(run, Run) else Run(address(resolved.config), config.root)
