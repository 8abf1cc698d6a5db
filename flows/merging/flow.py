"""The Prefect flow that merges networks: it observes activations, matches units, scores, and stores the result."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from tempfile import TemporaryDirectory

from prefect import flow

from roundweave.flows.config.merge import MergeConfig
from roundweave.flows.merging.preparing import MergePlan, plan_merge
from roundweave.flows.merging.result import Aligned, Choice, MergeResult, write_merge
from roundweave.flows.reporting.progress import flow_page, titled
from roundweave.flows.reporting.reporter import reported_step
from roundweave.flows.serving.ahead import started
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import DataError, UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.names import local_root
from roundweave.storage.values.tensors import LazyTensors
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.matching.groups import Permutation, Piece
from roundweave.tasks.matching.search.activations import Moments, summed
from roundweave.tasks.matching.search.matches import Evidence, match_all, match_each
from roundweave.tasks.merging.gallery import Blend, Gallery, observe, score_blend
from roundweave.tasks.numerics.pinning import pinned

# No `from __future__ import annotations`: Prefect pickles a served flow by value and needs classes as annotations.


PLAIN, MERGED, REPAIRED = "plain mean", "merged", "merged, repaired"

TITLE = "merge"
"""The name of a flow run that merges, until the merge has a name."""


@reported_step("observe")
def observe_units(executor: Executor, plan: MergePlan, gallery: Gallery) -> dict[Piece, Moments]:
    """The moments of the networks' activations, computed by a map over blocks of examples.

    Raises `UsageError` if the blocks hold too few examples.
    """
    pairs = list(combinations(range(len(plan.states)), 2))
    moments = summed(executor.gather(partial(observe, gallery, plan.places, pairs), gallery.blocks))
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
        return [plan.units.identity() for _ in plan.states]
    with pinned(0, threads=1):
        evidence = Evidence(plan.states, plan.units, config.match or "weights", config.metric, moments)
        if config.soft is not None:
            return list(match_each(evidence, config.soft or None, config.temperature))
        return list(match_all(evidence, config.together))


@contextmanager
def aligned(plan: MergePlan, orders: Sequence[Permutation]) -> Iterator[Aligned]:
    """Yield the networks in these orders. For scoring they are written to files, which are deleted at the end."""
    states = [
        LazyTensors(state.names, partial(plan.units.permuted, state=state, permutation=order), state.specs)
        for state, order in zip(plan.states, orders, strict=True)
    ]
    if plan.gallery is None or plan.config.match == "none":
        yield Aligned(orders, states, plan.places)
        return
    root = local_root(plan.gallery.root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".merge-", dir=root, ignore_cleanup_errors=True) as folder:
        places = tuple(f"{folder}/{i}.pt" for i in range(len(states)))
        for place, state in zip(places, states, strict=True):
            write_checkpoint(place, state)
        yield Aligned(orders, states, places)


@reported_step("score")
def score_networks(executor: Executor, gallery: Gallery, blends: list[Blend]) -> list[Score | None]:
    """The held-out scores of blends of networks, computed by a map over the blends."""
    return executor.gather(partial(score_blend, gallery, blends), range(len(blends)))


def choose(executor: Executor, plan: MergePlan, places: tuple[str, ...]) -> Choice:
    """The mean that the configuration asks for, or the best point of the path between two networks.

    `places` are the files of the aligned networks. Raises `DataError` if one has no finite loss on the held-out
    examples.
    """
    config, parents, count = plan.config, plan.places, len(places)
    merged = Blend(places, tuple(config.coefficients or [1.0] * count))
    if plan.gallery is None:
        return Choice(merged)
    kinds = {PLAIN: replace(merged, places=parents), MERGED: merged}
    if config.repair:
        kinds[REPAIRED] = replace(merged, repair=True)
    blends = {
        f"parent {name}": Blend(parents, tuple(float(i == j) for j in range(count)))
        for i, name in enumerate(config.networks)
    }
    ensemble = {"ensemble": replace(kinds[PLAIN], how="ensemble")} if plan.gallery.ensemble_loss else {}
    blends |= ensemble | kinds
    steps = [i / (config.points - 1) for i in range(config.points)] if count == 2 else []
    points = (
        (f"path {kind}", replace(blend, coefficients=(1 - step, step)))
        for kind, blend in kinds.items()
        for step in steps
    )
    names, every = zip(*blends.items(), *points, strict=True)
    given = score_networks(executor, plan.gallery, list(every))
    if None in given:
        unsound = names[given.index(None)]
        raise DataError(f"{unsound} has no finite loss on the held-out examples; check the networks and the data")
    found = filter(None, given)
    scores = {name: next(found) for name in blends}
    paths = {kind: [next(found) for _ in steps] for kind in kinds if steps}
    *_, (final, blend) = kinds.items()
    if config.average == "best":
        best = min(range(len(steps)), key=lambda i: (-(paths[final][i].accuracy or 0.0), paths[final][i].loss))
        blend = replace(blend, coefficients=(1 - steps[best], steps[best]))
        scores |= {kind: path[best] for kind, path in paths.items()}
    return Choice(blend, scores, paths)


@flow(name="roundweave-merge", persist_result=False)
def merge_flow(config: MergeConfig) -> MergeResult:
    """Match the units of networks that were trained apart, average them, and say how good the result is."""
    with titled(config.name or TITLE):
        plan = plan_merge(config)
        with started(plan.config) as executor:
            return merge_networks(plan, executor)


def merge_networks(plan: MergePlan, executor: Executor) -> MergeResult:
    """Merge planned networks as the current flow run."""
    by_activations = plan.config.match in ("activations", "mixed")
    moments = observe_units(executor, plan, plan.gallery) if plan.gallery and by_activations else {}
    with aligned(plan, match_units(plan, moments)) as networks:
        choice = choose(executor, plan, networks.places)
        result = write_merge(plan, networks, choice)
    with flow_page(result.name) as page:
        if page is not None:
            rows = [{"network": network, **score.row()} for network, score in result.scores.items()]
            page.leave_table(rows, "scores")
        if page is not None and result.paths:
            page.leave_plot(result.figure(), "plot")
    return result
