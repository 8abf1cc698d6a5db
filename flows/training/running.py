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
from roundweave.flows.reporting.listening import begun, follow, going_on, notify_skip
from roundweave.flows.serving.ahead import ahead, reachable
from roundweave.flows.stored import Run, open_run
from roundweave.flows.training.hooks import around
from roundweave.flows.training.rounds import train_rounds
from roundweave.storage.errors import UsageError
from roundweave.tasks.own_code.imports import kept


class Interrupted(KeyboardInterrupt):
    """A `KeyboardInterrupt` with a short message: a notebook shows one line, a script a short traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"interrupted; {self}"]


def train(config: TrainConfig, bar: bool = True, plugins: Sequence[Plugin] = ()) -> Run:
    """Train as a Prefect flow, and return the run as it is stored.

    Prefect only shows the progress: if its server fails, the training goes on.

    Args:
        config: What to train and where. A run of its name that was interrupted goes on where it ended.
        bar: Whether to show a progress bar; notices are shown in any case.
        plugins: Plugins of one's own that take part; those that decide bits are recorded with their code.

    Returns:
        The run after its last round.

    Raises:
        UsageError: The configuration asks for what does not exist or fit together; nothing was started.
        RoundFailed: A round had too few sound updates. The rounds before it are kept.
        RoundweaveError: The data, the network, the store or the cluster failed, as the line says.

    Example:
        >>> run = rw.train(rw.TrainConfig(lr=0.2, partitions=4, rounds=5, executor="inline"))
    """
    given = plugins if isinstance(plugins, Sequence) else [plugins]
    wrong = [each for each in given if not isinstance(each, Plugin)]
    if wrong or isinstance(plugins, Plugin):
        raise UsageError(f"plugins has instances of roundweave.Plugin, such as [Mine()], not {plugins!r}")
    decide = tuple(OwnPlugin.of(each) for each in plugins if each.decides)
    config = config.model_copy(update={"plugins": (*config.plugins, *decide)})
    beside = [each for each in plugins if not each.decides]
    before = len(begun)
    try:
        with around(config, beside), bar_of_rounds(config.rounds, bar):
            return train_past_others(partial(_run_flow, beside), configure(config, beside))
    except KeyboardInterrupt:
        raise Interrupted(going_on(begun[-1] if len(begun) > before else None)) from None


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
    except Skipped as skipped:  # which the flow run has said
        return Run(skipped.address, config.root)
    return Run(plan.address, config.root)


def _as_flow_run(config: TrainConfig, function: Callable[[], Any]) -> Any:
    """Call a function that trains a run, or stands for one, as a flow run of Prefect."""
    with kept():
        from roundweave.flows.reporting.reporter import run_flow  # Prefect is slow to import
        from roundweave.flows.training.flow import as_flow, train_flow
    with reachable(config.root):
        return run_flow(train_flow, config, partial(as_flow, config, function))
