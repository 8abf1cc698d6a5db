"""``roundweave.merge``: runs the merging flow with a Prefect server and an executor."""

from __future__ import annotations

from flows.config.merge import MergeConfig
from flows.merging.preparing import plan_merge
from flows.merging.result import MergeResult
from flows.serving.ahead import ahead


def merge(config: MergeConfig) -> MergeResult:
    """Merge networks as a Prefect flow, reporting like `roundweave.train`.

    Raises `RoundweaveError`; networks that cannot be merged are refused before anything is started.
    """
    plan = plan_merge(config)
    with ahead(plan):
        from flows.merging.flow import merge_flow
        from flows.reporting.engine import run_flow

        return run_flow(merge_flow, plan.config)
