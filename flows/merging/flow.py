"""The flow that merges networks: it wires observing, matching, scoring and keeping together."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import combinations

from prefect import flow

from flows.config.merge import MergeConfig
from flows.merging.choosing import Matcher, find, remembered
from flows.merging.going_on import joint_training, rounds_after, with_joint, with_rounds
from flows.merging.keeping import keep
from flows.merging.preparing import Aligned, MergePlan, aligned, plan_merge
from flows.merging.result import MergeResult
from flows.reporting.engine import step
from flows.reporting.progress import flow_page, titled
from flows.serving.ahead import started
from flows.training.flow import train_rounds
from storage.errors import UsageError
from storage.rounds.commits import Score
from tasks.executors.base import Executor
from tasks.matching.groups import Permutation, Piece
from tasks.matching.search.activations import Moments, summed
from tasks.matching.search.evidence import Evidence
from tasks.matching.search.networks import match_all, match_each
from tasks.merging.blends import Blend, score_blend
from tasks.merging.observing import observe
from tasks.numerics import pinned

# No `from __future__ import annotations`: Prefect pickles a served flow by value, where text is no class.


@step("observe")
def observe_units(executor: Executor, plan: MergePlan) -> dict[Piece, Moments]:
    """The moments of the networks' activations, a map over blocks of examples."""
    pairs = list(combinations(range(len(plan.states)), 2))
    blocks = range(plan.gallery.partitions.split.partitions)
    found = summed(executor.gather(partial(observe, plan.gallery, plan.places, pairs), blocks))
    if not found and plan.units.groups:
        raise UsageError(
            f"{plan.config.examples} examples in {len(blocks)} blocks are too few to compare activations in "
            f"batches of {plan.units.batch}; give more --examples or data"
        )
    return found


@step("match")
def match_units(plan: MergePlan, moments: dict[Piece, Moments]) -> list[Permutation]:
    """An order, or a mixture, for each network's units."""
    config = plan.config
    assert config.match != "auto"
    if config.match == "none" or not plan.units.groups:
        return [plan.units.identity() for _ in plan.states]
    with pinned(0, threads=1):
        evidence = Evidence(plan.states, plan.units, config.match or "weights", config.metric, moments)
        if config.soft is not None:
            return list(match_each(evidence, config.soft or None, config.temperature))
        return list(match_all(evidence, config.together))


@step("score")
def score_networks(executor: Executor, plan: MergePlan, blends: list[Blend]) -> list[Score | None]:
    """The scores of blends of networks, a map over blends."""
    return executor.gather(partial(score_blend, plan.gallery, blends), range(len(blends)))


@contextmanager
def matching(executor: Executor, plan: MergePlan) -> Iterator[Matcher]:
    """What puts the networks in order; they are observed once, and matched once in each way that is asked for."""
    observed = cache(partial(observe_units, executor, plan))
    with ExitStack() as files:

        @cache
        def ordered(match: str, soft: int | None) -> Aligned:
            config = plan.config.model_copy(update={"match": match, "soft": soft})
            moments = observed() if match in ("activations", "mixed") else {}
            here = replace(plan, config=config)
            return files.enter_context(aligned(here, match_units(here, moments)))

        yield lambda wanted: ordered(wanted.config.match, wanted.config.soft)


@flow(name="roundweave-merge", persist_result=False)
def merge_flow(config: MergeConfig) -> MergeResult:
    """Match the units of networks that were trained apart, average them, and say how good the result is."""
    with titled(config.name or "merge"), started(plan_merge, config) as (plan, executor):
        scorer = remembered(partial(score_networks, executor, plan))
        with matching(executor, plan) as matcher:
            result = keep(find(plan, matcher, scorer))
        if plan.config.rounds:
            # Not as a flow of its own: the windows are steps of this one, which goes on without Prefect, too.
            result = with_rounds(result, train_rounds(rounds_after(plan, result)), scorer)
        if plan.config.joint:
            result = with_joint(result, train_rounds(joint_training(plan, result)), scorer)
    report(result)
    return result


def report(result: MergeResult) -> None:
    """Leave the scores as a table, and the path as a plot, on Prefect's page."""
    with flow_page(result.name) as page:
        if page is None:
            return
        page.leave_table(
            [{"network": network, **score.row()} for network, score in result.scores.items()], "scores"
        )
        if result.ladder:
            page.leave_table([rung.row() for rung in result.ladder.rungs], "ways")
        if result.paths:
            page.leave_plot(result.figure(), "plot")
