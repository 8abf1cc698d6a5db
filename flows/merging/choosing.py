"""The candidates for the merged network, their scores, and which of them it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from roundweave.flows.merging.preparing import MergePlan
from roundweave.flows.reporting.reporter import reported_step
from roundweave.flows.stored import open_run
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import DataError, UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.opening import open_checkpoint
from roundweave.storage.values.lazy import LazyTensors, changed, picked
from roundweave.storage.values.tensors import load_named
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.matching.groups import Permutation, Tensors
from roundweave.tasks.matching.solving.grams import layers_of, permuted_grams
from roundweave.tasks.matching.solving.layers import Layer
from roundweave.tasks.merging.distilling import Teaching, write_distilled
from roundweave.tasks.merging.fisher import fisher_mean, fisher_of
from roundweave.tasks.merging.gallery import Blend, Gallery, blended, combined_by, score_blend
from roundweave.tasks.merging.solving import grams_of, regressed, write_least_squares
from roundweave.tasks.networks.spectral import converge
from roundweave.tasks.numerics.pinning import pinned

PLAIN, MERGED, REPAIRED = "plain mean", "merged", "merged, repaired"

SOLVES = ("regmean", "pleas")
"""The averages that solve each layer."""


@dataclass(frozen=True)
class Aligned:
    """Networks with their units in one order: lazily permuted `states`, and the files that workers read.

    `base` has their base network, if there is one, in the same order, and `base_place` its file.
    """

    orders: Sequence[Permutation]
    states: list[LazyTensors]
    places: tuple[str, ...]
    base: Sequence[LazyTensors] = ()
    base_place: str | None = None


@dataclass(frozen=True)
class Choice:
    """The merged network's named tensors and its name among the candidates, and scores; without data none.

    `scores` has a score for each parent, the ensemble and each candidate; `paths` has the scores of evenly spaced
    points from the first of two networks to the second, by kind of mean.
    """

    name: str
    tensors: Tensors
    coefficients: tuple[float, ...]
    scores: Mapping[str, Score] = field(default_factory=dict)
    paths: Mapping[str, Sequence[Score]] = field(default_factory=dict)


@reported_step("score")
def score_networks(executor: Executor, gallery: Gallery, blends: Mapping[str, Blend]) -> dict[str, Score]:
    """Return the held-out scores of blends of networks by name, computed by a map over the blends.

    Raises `DataError` if one has no finite loss on the held-out examples.
    """
    scores = executor.gather(partial(score_blend, gallery, [*blends.values()]), range(len(blends)))
    for name, score in zip(blends, scores, strict=True):
        if score is None:
            raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return {name: score for name, score in zip(blends, scores, strict=True) if score is not None}


def choose(executor: Executor, plan: MergePlan, networks: Aligned, folder: str) -> Choice:
    """Return the candidate that the configuration asks for, distilled if it says so; with auto, if that is better.

    Candidates that are solved or distilled are written to files in the folder.
    """
    choice = _averaged(executor, plan, networks, folder)
    if plan.config.distil is None:
        return choice
    start, out = f"{folder}/start.pt", f"{folder}/distilled.pt"
    write_checkpoint(start, choice.tensors)
    distil_networks(executor, plan, start, out)
    name = f"{choice.name}, distilled"
    after = score_networks(executor, plan.gallery, {name: Blend((out,), (1.0,))}) if plan.gallery else {}
    scores = {**choice.scores, **after}
    if plan.config.average == "auto" and scores[name].loss >= scores[choice.name].loss:
        return replace(choice, scores=scores)
    return replace(choice, name=name, tensors=_read(plan, out), scores=scores)


def _averaged(executor: Executor, plan: MergePlan, networks: Aligned, folder: str) -> Choice:
    """Return the average that the configuration asks for, or the best point of the path between two networks."""
    config = plan.config
    mean = Blend(networks.places, config.shares(len(networks.states)))
    by_recipe = replace(mean, recipe=plan.recipe, base=networks.base_place)
    if plan.gallery is None:
        return _unscored(executor, plan, networks, by_recipe)
    means = {PLAIN: replace(mean, places=plan.places), MERGED: mean}
    if config.repair:
        means[REPAIRED] = replace(mean, repair=True)
    candidates = means | solve_networks(executor, plan, networks, mean, folder)
    if config.average == "fisher":
        candidates[f"{MERGED}, fisher"] = weigh_networks(executor, plan, networks, mean, f"{folder}/fisher.pt")
    if plan.recipe is not None:
        candidates[f"{MERGED}, {config.average}"] = replace(by_recipe, repair=bool(config.repair))
    # Networks whose units were paired within them are none by themselves, and there is no path between them.
    between = {PLAIN: means[PLAIN]} if config.within else means
    scores, paths = _compare(executor, plan, candidates, between)
    (*_, of_mean), (*_, name) = means, candidates
    if config.average == "auto":
        name = min((n for n in candidates if n == of_mean or n not in means), key=lambda n: scores[n].loss)
    blend = candidates[name]
    if config.average == "best":
        points = paths[of_mean]
        best = min(range(len(points)), key=lambda i: (-(points[i].accuracy or 0.0), points[i].loss))
        blend = _at(blend, best / (len(points) - 1))
        scores |= {kind: path[best] for kind, path in paths.items()}
    return Choice(name, blend_tensors(plan, networks, blend), _reported(plan, blend.coefficients), scores, paths)


def _unscored(executor: Executor, plan: MergePlan, networks: Aligned, blend: Blend) -> Choice:
    """Return the average that the configuration asks for, without data; of Gram matrices in files it is solved."""
    config, reported = plan.config, _reported(plan, blend.coefficients)
    name = f"{MERGED}, {config.average}"
    if config.average != "regmean":
        return Choice(name if plan.recipe else MERGED, blend_tensors(plan, networks, blend), reported)
    layers = layers_of(plan.architecture.outlined(), plan.inputs)
    _check_layers(SOLVES, layers)
    grams = _permuted_grams(executor, plan, networks, layers)
    return Choice(name, regressed(networks.states, grams, layers, blend.coefficients, config.shrinkage), reported)


def _reported(plan: MergePlan, coefficients: Sequence[float]) -> tuple[float, ...]:
    """The coefficients to report: shares of a mean, those of a recipe as given, or none if tensors have others."""
    if plan.recipe is None:
        return tuple(c / sum(coefficients) for c in coefficients)
    return () if plan.config.layers else plan.config.numbers or ()


def _compare(
    executor: Executor, plan: MergePlan, candidates: Mapping[str, Blend], means: Mapping[str, Blend]
) -> tuple[dict[str, Score], dict[str, list[Score]]]:
    """Return the scores of networks as they came, their ensemble and the candidates, and of the paths of means."""
    assert plan.gallery is not None
    config, count = plan.config, len(plan.places)
    parents = {
        f"parent {name}": Blend(plan.places, tuple(float(i == j) for j in range(count)))
        for i, name in enumerate(config.networks)
    }
    ensemble = {"ensemble": replace(means[PLAIN], how="ensemble")} if plan.gallery.ensemble_loss else {}
    steps = [i / (config.points - 1) for i in range(config.points)] if count == 2 else []
    points = {f"path {kind} {i}": _at(b, step) for kind, b in means.items() for i, step in enumerate(steps)}
    scores = score_networks(executor, plan.gallery, {**parents, **ensemble, **candidates, **points})
    paths = {kind: [scores[f"path {kind} {i}"] for i in range(len(steps))] for kind in means if steps}
    return {name: score for name, score in scores.items() if name not in points}, paths


def _at(blend: Blend, step: float) -> Blend:
    """Return the blend at a point of the path from the first network, 0, to the second, 1."""
    return replace(blend, coefficients=(1 - step, step))


@reported_step("solve")
def solve_networks(
    executor: Executor, plan: MergePlan, networks: Aligned, mean: Blend, folder: str
) -> dict[str, Blend]:
    """The candidates with solved layers that the configuration asks for, by name, in files in the folder."""
    config, solved = plan.config, {}
    asked = [average for average in SOLVES if config.average in ("auto", average)]
    layers = layers_of(plan.architecture.outlined(), plan.inputs) if asked else {}
    if config.average != "auto":
        _check_layers(asked, layers)
    for average in asked if layers else ():
        out = f"{folder}/{average}.pt"
        if average == "regmean":
            grams = _permuted_grams(executor, plan, networks, layers)
            write_checkpoint(out, regressed(networks.states, grams, layers, mean.coefficients, config.shrinkage))
        else:
            given = plan.architecture, plan.own, networks.places, mean.coefficients, config.shrinkage, out
            executor.gather(partial(write_least_squares, *given, opened=open_run), range(1))
        solved[f"merged, {average}"] = replace(mean, solved=out, repair=bool(config.repair) and plan.normed)
    return solved


def _check_layers(asked: Sequence[str], layers: Mapping[str, Layer]) -> None:
    """Raise `UsageError` if a solve is asked for, and there are no layers."""
    if asked and not layers:
        raise UsageError("the network has no linear or convolutional layer that a solve can reach; average = mean")


def _permuted_grams(
    executor: Executor, plan: MergePlan, networks: Aligned, layers: Mapping[str, Layer]
) -> list[dict[str, torch.Tensor]]:
    """Return the Gram matrices of each network's own examples, in the aligned order of units."""
    of_each = partial(grams_of, plan.architecture, plan.own, plan.places, opened=open_run)
    given = plan.grams or executor.gather(of_each, range(plan.count))
    pairs = zip(given, networks.orders, strict=True)
    return [permuted_grams(grams, layers, plan.units, order) for grams, order in pairs]


@reported_step("weigh")
def weigh_networks(executor: Executor, plan: MergePlan, networks: Aligned, mean: Blend, out: str) -> Blend:
    """Return the mean weighted by each network's Fisher information, in the file `out`."""
    assert plan.gallery is not None  # a plan without examples was refused
    given = executor.gather(partial(fisher_of, plan.gallery, plan.own, plan.places), range(len(plan.places)))
    fishers = [
        LazyTensors(tuple(fisher), partial(plan.units.permuted, state=fisher, permutation=order))
        for fisher, order in zip(given, networks.orders, strict=True)
    ]
    write_checkpoint(out, fisher_mean(networks.states, fishers, mean.coefficients, plan.units.aliases))
    return replace(mean, solved=out, repair=bool(plan.config.repair) and plan.normed)


@reported_step("distil")
def distil_networks(executor: Executor, plan: MergePlan, start: str, out: str) -> None:
    """Write the network that the networks of the merge, as they came, teach the one in the file `start`."""
    config = plan.config
    axis = (plan.gallery.objective.rule.axis or -1) if plan.gallery and plan.gallery.is_classifier else None
    teaching = Teaching(
        plan.architecture, plan.own, plan.inputs, config.distil or 0, config.distil_lr, axis, config.seed
    )
    executor.gather(partial(write_distilled, teaching, plan.places, start, out, opened=open_run), range(1))


def blend_tensors(plan: MergePlan, networks: Aligned, blend: Blend) -> Tensors:
    """Return the named tensors of a blend, read or computed one by one where that is possible."""
    units, first = plan.units, networks.states[0]
    if blend.repair and plan.gallery is not None:
        with pinned(0, threads=1):
            return _cast(blended(plan.gallery, blend).state_dict(), first)
    if blend.solved is not None:
        return _read(plan, blend.solved)
    combined = combined_by(blend, networks.states, *networks.base)
    merged = picked({name: (combined, units.aliases.get(name, name)) for name in first})
    if not plan.spectral:
        return merged
    network = plan.architecture.build()
    load_named(network, merged)
    converge(network)
    return _cast(network.state_dict(), first)


def _read(plan: MergePlan, place: str) -> Tensors:
    return _cast(open_checkpoint(place, opened=open_run), plan.states[0])


def _cast(tensors: Tensors, like: LazyTensors) -> LazyTensors:
    """Named tensors in the types of others."""
    types = {spec.name: getattr(torch, spec.dtype) for spec in like.specs}
    return changed(tensors, like.specs, lambda name, tensor: tensor.to(types[name]))
