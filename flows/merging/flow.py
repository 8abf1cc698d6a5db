"""The Prefect flow that merges networks: it observes activations, matches units, scores, and stores the result."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from roundweave.flows.config.merging.merge import MergeConfig
from roundweave.flows.merging.choosing import Aligned, choose
from roundweave.flows.merging.preparing import MergePlan, plan_merge
from roundweave.flows.merging.result import MergeResult, write_merge
from roundweave.flows.reporting.progress import flow_page, titled
from roundweave.flows.reporting.reporter import reported_step
from roundweave.flows.serving.ahead import started
from roundweave.flows.serving.calling import OwnFlow
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.names import local_root
from roundweave.storage.values.lazy import LazyTensors
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.matching.groups import Permutation, Piece
from roundweave.tasks.matching.search.activations import Moments, summed
from roundweave.tasks.matching.search.matches import Evidence, match_all, match_each
from roundweave.tasks.matching.search.within import PAIRS, match_within
from roundweave.tasks.merging.gallery import Gallery, observe
from roundweave.tasks.numerics.pinning import pinned

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


TITLE = "merge"
"""The name of a flow run that merges, until the merge has a name."""


@reported_step("observe")
def observe_units(executor: Executor, plan: MergePlan, gallery: Gallery) -> dict[Piece, Moments]:
    """Return the moments of the networks' activations, computed by a map over blocks of examples.

    Raises `UsageError` if the blocks hold too few examples.
    """
    pairs = PAIRS if plan.config.within else list(combinations(range(len(plan.every_state)), 2))
    moments = summed(executor.gather(partial(observe, gallery, plan.every_place, pairs), gallery.blocks))
    if not moments and plan.units.groups:
        raise UsageError(
            f"{gallery.examples} examples in {len(gallery.blocks)} blocks are too few to compare activations in "
            f"batches of {plan.units.batch}; give more --examples or data"
        )
    return moments


@reported_step("match")
def match_units(plan: MergePlan, moments: dict[Piece, Moments]) -> list[Permutation]:
    """The permutation, or with `soft` the mixture, of each network's units that makes the networks most alike."""
    config = plan.config
    if config.match == "none" or not plan.units.groups:
        return [plan.units.identity() for _ in plan.every_state]
    with pinned(0, threads=1):
        evidence = Evidence(plan.every_state, plan.units, config.match or "weights", config.metric, moments)
        if config.within:
            return list(match_within(evidence))
        if config.soft is not None:
            return list(match_each(evidence, config.soft or None, config.temperature))
        return list(match_all(evidence, config.together))


@contextmanager
def workspace(plan: MergePlan) -> Iterator[str]:
    """Yield a folder for networks that tasks hand on, which is deleted at the end; empty if there will be none."""
    if plan.gallery is None and plan.config.distil is None:
        yield ""
        return
    root = local_root(full_address(plan.config.root)).resolve()
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".merge-", dir=root, ignore_cleanup_errors=True) as folder:
        yield folder


def aligned(plan: MergePlan, orders: Sequence[Permutation], folder: str) -> Aligned:
    """Return the networks in these orders. For scoring they are written to files in the folder."""
    states, count = plan.every_state, plan.count
    if plan.config.match != "none":
        states = [
            LazyTensors(state.names, partial(plan.units.permuted, state=state, permutation=order), state.specs)
            for state, order in zip(states, orders, strict=True)
        ]
    states = plan.filled(states)
    as_given = plan.gallery is None or (plan.config.match == "none" and not plan.orders)
    places = plan.every_place if as_given else _written(states, folder)
    base_place = next(iter(places[count:]), None)
    return Aligned(orders[:count], states[:count], places[:count], states[count:], base_place)


def _written(states: Sequence[LazyTensors], folder: str) -> tuple[str, ...]:
    """Return the files in a new or empty folder to which networks are written, for workers to read them."""
    Path(folder).mkdir(exist_ok=True)
    places = tuple(f"{folder}/{number}.pt" for number in range(len(states)))
    for place, state in zip(places, states, strict=True):
        write_checkpoint(place, state)
    return places


@partial(OwnFlow, name="roundweave-merge", persist_result=False)
def merge_flow(config: MergeConfig) -> MergeResult:
    """Match the units of networks that were trained apart, average them, and say how good the result is."""
    with titled(config.name or TITLE):
        plan = plan_merge(config)
        with started(plan.config) as executor:
            return merge_networks(plan, executor)


def merge_networks(plan: MergePlan, executor: Executor) -> MergeResult:
    """Merge planned networks as the current flow run."""
    by_activations = plan.config.match in ("activations", "mixed")
    with workspace(plan) as folder:
        if plan.orders and plan.gallery:
            plan = replace(plan, every_place=_written(plan.every_state, f"{folder}/own"))
        moments = observe_units(executor, plan, plan.gallery) if plan.gallery and by_activations else {}
        networks = aligned(plan, match_units(plan, moments), folder)
        result = write_merge(plan, networks, choose(executor, plan, networks, folder))
    with flow_page(result.name) as page:
        if page is not None:
            rows = [{"network": network, **score.row()} for network, score in result.scores.items()]
            page.leave_table(rows, "scores")
        if page is not None and result.paths:
            page.leave_plot(result.figure(), "plot")
    return result
