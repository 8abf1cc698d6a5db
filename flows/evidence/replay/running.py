"""Replaying with all that it needs around it."""

from __future__ import annotations

from flows.evidence.replay.config import ReplayConfig
from flows.evidence.replay.preparing import plan_replay
from flows.evidence.replay.result import Replay
from flows.evidence.replay.rounds import replay_rounds
from flows.reporting.bar import bar_of_rounds
from flows.reporting.listening import notice
from tasks.executors.choice import open_executor


def replay(config: ReplayConfig) -> Replay:
    """Replay without Prefect, and with the executor `inline` without Dask; raises `RoundweaveError`."""
    plan = plan_replay(config)
    executor = open_executor(config.executor, notice=notice, **config.placed)
    with bar_of_rounds(len(plan.rounds)), executor as opened:
        return replay_rounds(plan, opened)
