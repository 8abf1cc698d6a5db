"""``roundweave.train``: runs the training flow with a progress bar, a Prefect server and an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from roundweave.flows.config.base import Skipped
from roundweave.flows.config.plugins import OwnPlugin
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe_here
from roundweave.flows.planning.naming import configure, train_past_others
from roundweave.flows.planning.plan import plan_run
from roundweave.flows.plugin import Plugin
from roundweave.flows.reporting.bar import bar_of_rounds
from roundweave.flows.reporting.listening import follow, notify_skip
from roundweave.flows.serving.ahead import ahead, reachable
from roundweave.flows.stored import Run, open_run
from roundweave.flows.training.hooks import around
from roundweave.flows.training.rounds import train_rounds
from roundweave.storage.errors import UsageError
from roundweave.tasks.own_code.imports import kept


def train(config: TrainConfig, bar: bool = True, plugins: Sequence[Plugin] = ()) -> Run:
    """Train in a Prefect flow, and return the stored run.

    Prefect only shows the progress. If its server fails, the training goes on. An interrupted run of the
    configuration's `name` resumes after its last committed round.

    Args:
        config: What to train, and where.
        bar: Shows a progress bar. Messages are shown in any case.
        plugins: Your plugins that take part. The code of plugins that decide bits is recorded.

    Returns:
        The run after its last round.

    Raises:
        UsageError: A value does not exist, or values contradict each other. Nothing was started.
        RoundFailed: A round had too few sound updates. The rounds before it are kept.
        RoundweaveError: The data, the network, the store or the cluster failed; the message says why.

    Example:
        >>> run = rw.train(rw.TrainConfig(lr=0.2, partitions=4, rounds=5, executor="inline"))
    """
    if not isinstance(config, TrainConfig):
        raise UsageError(f"train takes rw.TrainConfig(data=…, rounds=…), not a {type(config).__name__}")
    given = plugins if isinstance(plugins, Sequence) else [plugins]
    wrong = [each for each in given if not isinstance(each, Plugin)]
    if wrong or isinstance(plugins, Plugin):
        raise UsageError(f"plugins takes instances of roundweave.Plugin, such as [Mine()], not {plugins!r}")
    decide = tuple(OwnPlugin.of(each) for each in plugins if each.decides)
    config = config.model_copy(update={"plugins": (*config.plugins, *decide)})
    beside = [each for each in plugins if not each.decides]
    with around(config, beside), bar_of_rounds(config.rounds, bar):
        return train_past_others(partial(_run_flow, beside), configure(config, beside))


def _run_flow(plugins: Sequence[Plugin], config: TrainConfig) -> Run:
    try:
        plan = plan_run(config, plugins, open_run)
        described = describe_here(plan)
    except Skipped as skipped:
        notify_skip(str(skipped))
        return Run(skipped.address, config.root)
    try:
        with ahead(plan.config, plan.placement) as executor:
            train = partial(train_rounds, plan, described, executor)
            follow(partial(_as_flow_run, plan.config), train)
    except Skipped as skipped:  # the flow run has reported this already
        return Run(skipped.address, config.root)
    return Run(plan.address, config.root)


def _as_flow_run(config: TrainConfig, function: Callable[[], Any]) -> Any:
    """Call a function that trains a run as a flow run of Prefect."""
    with kept():
        from roundweave.flows.reporting.reporter import run_flow  # Prefect is slow to import
        from roundweave.flows.training.flow import as_flow, train_flow
    with reachable(config.root):
        return run_flow(train_flow, config, partial(as_flow, config, function))
