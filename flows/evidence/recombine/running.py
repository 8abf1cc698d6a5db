"""Reducing again with all that it needs around it."""

from __future__ import annotations

from flows.evidence.recombine.config import RecombineConfig
from flows.evidence.recombine.recombining import plan_recombine, recombined
from flows.reporting.listening import notice
from tasks.evidence.recombining import Recombination
from tasks.executors.choice import open_executor


def recombine(config: RecombineConfig) -> Recombination:
    """Reduce stored rounds again without Prefect, and with the executor `inline` without Dask.

    Raises `RoundweaveError`; what cannot be is said before anything is started.
    """
    plan = plan_recombine(config)
    with open_executor(config.executor, notice=notice, **config.placed) as executor:
        return recombined(plan, executor)
