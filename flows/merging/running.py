"""``roundweave.merge``: runs the merging flow with a Prefect server and an executor."""

from __future__ import annotations

from functools import partial

from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.flows.merging.preparing import plan_merge
from roundweave.flows.merging.result import MergeResult
from roundweave.flows.serving.ahead import ahead, reachable


def merge(config: MergeConfig) -> MergeResult:
    """Match the hidden units of networks that were trained apart, and merge the networks.

    The merge is a Prefect flow.

    Args:
        config: The networks, how to match them, and the place of the merged network.

    Returns:
        The scores of the parents, the plain mean and the merged network, and the run or file of the merged
        network.

    Raises:
        UsageError: The networks cannot be merged. Nothing was started.
        RoundweaveError: A checkpoint, the store or the cluster failed; the message says why.

    Example:
        >>> result = rw.merge(rw.MergeConfig(networks=("first@-1", "first@1"), executor="inline"))
    """
    plan = plan_merge(config)
    with ahead(plan.config) as executor, reachable(plan.config.root):
        from roundweave.flows.merging.flow import TITLE, merge_flow, merge_networks  # Prefect is slow to import
        from roundweave.flows.reporting.progress import titled
        from roundweave.flows.reporting.reporter import run_flow

        titled_merge = titled(config.name or TITLE)(partial(merge_networks, plan, executor))
        return run_flow(merge_flow, plan.config, titled_merge)
