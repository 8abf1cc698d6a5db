"""Reducing again, in this process or as a flow with all that it needs around it."""

from __future__ import annotations

from flows.evidence.recombine.config import RecombineConfig
from flows.evidence.recombine.recombining import plan_recombine, recombined
from flows.serving.ahead import ahead
from tasks.evidence.recombining import Recombination
from tasks.executors.choice import open_executor


def recombine(config: RecombineConfig) -> Recombination:
    """Reduce stored rounds again: inline in this process alone, else as a Prefect flow like `roundweave.train`.

    Raises `RoundweaveError`; what cannot be is said before anything is started.
    """
    plan = plan_recombine(config)
    if config.executor == "inline":
        with open_executor("inline", None, workers=1) as executor:
            return recombined(plan, executor)
    with ahead(plan):
        from flows.evidence.recombine.flow import recombine_flow
        from flows.reporting.engine import run_flow

        return run_flow(recombine_flow, plan.config)
