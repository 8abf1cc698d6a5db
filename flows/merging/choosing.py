"""Which mean of the networks is the merged one: score what a merge may give, and choose the coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flows.merging.preparing import MergePlan
from storage.errors import DataError
from storage.rounds.commits import Score
from tasks.merging.blends import Blend

Scorer = Callable[[list[Blend]], list[Score | None]]

PLAIN, MERGED, REPAIRED = "plain mean", "merged", "merged, repaired"


@dataclass(frozen=True)
class Choice:
    """The blend that becomes the merged network, and the scores; none without data.

    `scores` has a row for each parent, the ensemble and each kind of mean; `paths` has scores at evenly spaced
    points from the first of two networks to the second, by kind.
    """

    blend: Blend
    scores: Mapping[str, Score] = field(default_factory=dict)
    paths: Mapping[str, Sequence[Score]] = field(default_factory=dict)


def choose(plan: MergePlan, places: tuple[str, ...], scorer: Scorer) -> Choice:
    """The mean that the configuration asks for, of aligned networks at these places, or the best of the path."""
    wanted = _wanted(plan, places)
    if plan.subject.partitions is None:
        return Choice(wanted)
    single, paths = _singles(plan, places), _paths(plan, places)
    scores = _scored(single | {f"path {kind}": blends for kind, blends in paths.items()}, scorer)
    along = {kind: scores[f"path {kind}"] for kind in paths}
    firsts = {name: scores[name][0] for name in single}
    if plan.config.average != "best":
        return Choice(wanted, firsts, along)
    final = REPAIRED if plan.config.repair else MERGED
    best = min(range(len(along[final])), key=lambda i: (-(along[final][i].accuracy or 0.0), along[final][i].loss))
    blend = replace(paths[final][best], repair=False)
    return Choice(blend, firsts | {kind: each[best] for kind, each in along.items()}, along)


def _wanted(plan: MergePlan, places: tuple[str, ...]) -> Blend:
    config = plan.config
    return Blend(places, tuple(config.coefficients or [1.0] * len(places)), layers=tuple(config.layers.items()))


def _kinds(plan: MergePlan, places: tuple[str, ...]) -> dict[str, Blend]:
    plain, matched = _wanted(plan, plan.places), _wanted(plan, places)
    repaired = {REPAIRED: replace(matched, repair=True)} if plan.config.repair else {}
    return {PLAIN: plain, MERGED: matched, **repaired}


def _singles(plan: MergePlan, places: tuple[str, ...]) -> dict[str, list[Blend]]:
    """Each parent alone, the ensemble of all, and the means."""
    ensemble = replace(_wanted(plan, plan.places), how="ensemble")
    means = {"ensemble": ensemble, **_kinds(plan, places)}
    count = len(plan.places)
    alone = [tuple(float(i == j) for j in range(count)) for i in range(count)]
    parents = {f"parent {place}": Blend(plan.places, alone[i]) for i, place in enumerate(plan.config.networks)}
    return {name: [blend] for name, blend in (parents | means).items()}


def _paths(plan: MergePlan, places: tuple[str, ...]) -> dict[str, list[Blend]]:
    """Of two networks, evenly spaced points from the first to the second, by kind of mean."""
    if len(places) != 2:
        return {}
    steps = [i / (plan.config.points - 1) for i in range(plan.config.points)]
    return {
        kind: [replace(blend, coefficients=(1 - step, step), layers=()) for step in steps]
        for kind, blend in _kinds(plan, places).items()
    }


def _scored(blends: Mapping[str, list[Blend]], scorer: Scorer) -> dict[str, list[Score]]:
    """All scores in one map; raises `DataError` where the held-out examples give none."""
    scores = iter(scorer([blend for each in blends.values() for blend in each]))
    by_name: dict[str, list[Score]] = {}
    for name, each in blends.items():
        here = [next(scores) for _ in each]
        by_name[name] = [score for score in here if score is not None]
        if len(by_name[name]) < len(here):
            raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return by_name
