"""Replaying as a flow, with all that it needs around it, and in this process without Prefect."""

from __future__ import annotations

from flows.evidence.replay.config import ReplayConfig
from flows.evidence.replay.preparing import plan_replay
from flows.evidence.replay.result import Replay
from flows.evidence.replay.rounds import replay_rounds
from flows.reporting.bar import bar_of_rounds
from flows.serving.ahead import ahead
from tasks.executors.choice import open_executor


def replay(config: ReplayConfig) -> Replay:
    """Replay as a Prefect flow, reporting like `roundweave.train`; raises `RoundweaveError`."""
    plan = plan_replay(config)
    with bar_of_rounds(len(plan.rounds)), ahead(plan):
        from flows.evidence.replay.flow import replay_flow  # Prefect is slow to import
        from flows.reporting.engine import run_flow

        return run_flow(replay_flow, plan.config)


def replay_here(config: ReplayConfig) -> Replay:
    """The same without Prefect, and with the executor `inline` without Dask."""
    plan = plan_replay(config)
    with bar_of_rounds(len(plan.rounds)), open_executor(config.executor, **config.placed) as executor:
        return replay_rounds(plan, executor)
