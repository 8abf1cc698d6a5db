"""The Prefect flow that merges networks: it observes activations, matches units, scores, and stores the result."""

from functools import partial
from itertools import combinations

from prefect import flow

from flows.config.merge import MergeConfig
from flows.merging.choosing import choose
from flows.merging.preparing import MergePlan, aligned, plan_merge
from flows.merging.result import MergeResult
from flows.merging.storing import keep
from flows.reporting.engine import step
from flows.reporting.progress import flow_page, titled
from flows.serving.ahead import started
from storage.errors import UsageError
from storage.rounds.commits import Score
from tasks.executors.base import Executor
from tasks.matching.groups import Permutation, Piece
from tasks.matching.search.activations import Moments, summed
from tasks.matching.search.networks import Evidence, match_all, match_each
from tasks.merging.blends import Blend, score_blend
from tasks.merging.gallery import observe
from tasks.numerics import pinned

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


@step("observe")
def observe_units(executor: Executor, plan: MergePlan) -> dict[Piece, Moments]:
    """The moments of the networks' activations, computed by a map over blocks of examples.

    Raises `UsageError` if the blocks hold too few examples.
    """
    pairs = list(combinations(range(len(plan.states)), 2))
    blocks = range(plan.gallery.partitions.split.partitions)
    moments = summed(executor.gather(partial(observe, plan.gallery, plan.places, pairs), blocks))
    if not moments and plan.units.groups:
        raise UsageError(
            f"{plan.config.examples} examples in {len(blocks)} blocks are too few to compare activations in "
            f"batches of {plan.units.batch}; give more --examples or data"
        )
    return moments


@step("match")
def match_units(plan: MergePlan, moments: dict[Piece, Moments]) -> list[Permutation]:
    """The permutation, or with `soft` the mixture, of each network's units that makes the networks most alike."""
    config = plan.config
    if config.match == "none" or not plan.units.groups:
        return [plan.units.identity() for _ in plan.states]
    with pinned(0, threads=1):
        evidence = Evidence(plan.states, plan.units, config.match or "weights", config.metric, moments)
        if config.soft is not None:
            return list(match_each(evidence, config.soft or None, config.temperature))
        return list(match_all(evidence, config.together))


@step("score")
def score_networks(executor: Executor, plan: MergePlan, blends: list[Blend]) -> list[Score | None]:
    """The held-out scores of blends of networks, computed by a map over the blends."""
    return executor.gather(partial(score_blend, plan.gallery, blends), range(len(blends)))


@flow(name="roundweave-merge", persist_result=False)
def merge_flow(config: MergeConfig) -> MergeResult:
    """Match the units of networks that were trained apart, average them, and say how good the result is."""
    with titled(config.name or "merge"), started(plan_merge, config) as (plan, executor):
        moments = observe_units(executor, plan) if plan.config.match in ("activations", "mixed") else {}
        with aligned(plan, match_units(plan, moments)) as networks:
            choice = choose(plan, networks.places, partial(score_networks, executor, plan))
            result = keep(plan, networks, choice)
    report(result)
    return result


def report(result: MergeResult) -> None:
    """Add the scores as a table, and the path as a plot, to the flow run's page in Prefect."""
    with flow_page(result.name) as page:
        if page is None:
            return
        page.leave_table(
            [{"network": network, **score.row()} for network, score in result.scores.items()], "scores"
        )
        if result.paths:
            page.leave_plot(result.figure(), "plot")
