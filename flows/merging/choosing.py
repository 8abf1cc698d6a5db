"""Chooses the merged network: scores the candidate means of the networks and picks the coefficients."""

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
    """The blend that becomes the merged network, and the scores; without data there are none.

    `scores` has a score for each parent, the ensemble and each kind of mean; `paths` has the scores of evenly
    spaced points from the first of two networks to the second, by kind of mean.
    """

    blend: Blend
    scores: Mapping[str, Score] = field(default_factory=dict)
    paths: Mapping[str, Sequence[Score]] = field(default_factory=dict)


def choose(plan: MergePlan, places: tuple[str, ...], scorer: Scorer) -> Choice:
    """The mean that the configuration asks for, or the best point of the path between two networks.

    `places` are the files of the aligned networks, `scorer` scores a list of blends.
    """
    config, parents = plan.config, plan.places
    coefficients = tuple(config.coefficients or [1.0] * len(places))
    matched = Blend(places, coefficients, layers=tuple(config.layers.items()))
    if plan.subject.partitions is None:
        return Choice(matched)
    plain = replace(matched, places=parents)
    kinds = {PLAIN: plain, MERGED: matched}
    kinds |= {REPAIRED: replace(matched, repair=True)} if config.repair else {}
    alone = [tuple(float(i == j) for j in range(len(parents))) for i in range(len(parents))]
    single = {f"parent {name}": Blend(parents, one) for name, one in zip(config.networks, alone, strict=True)}
    single |= {"ensemble": replace(plain, how="ensemble"), **kinds}
    steps = [i / (config.points - 1) for i in range(config.points)] if len(places) == 2 else []
    paths = {
        kind: [replace(blend, coefficients=(1 - step, step), layers=()) for step in steps]
        for kind, blend in kinds.items()
        if steps
    }
    blends = {name: [blend] for name, blend in single.items()}
    scores = _scored(blends | {f"path {kind}": points for kind, points in paths.items()}, scorer)
    firsts = {name: scores[name][0] for name in single}
    along = {kind: scores[f"path {kind}"] for kind in paths}
    if config.average != "best":
        return Choice(matched, firsts, along)
    final = REPAIRED if config.repair else MERGED
    best = min(range(config.points), key=lambda i: (-(along[final][i].accuracy or 0.0), along[final][i].loss))
    blend = replace(paths[final][best], repair=False)
    return Choice(blend, firsts | {kind: each[best] for kind, each in along.items()}, along)


def _scored(blends: Mapping[str, list[Blend]], scorer: Scorer) -> dict[str, list[Score]]:
    """Score all blends in one call; raises `DataError` if one has no finite loss on the held-out examples."""
    scores = iter(scorer([blend for each in blends.values() for blend in each]))
    by_name: dict[str, list[Score]] = {}
    for name, each in blends.items():
        own = [next(scores) for _ in each]
        by_name[name] = [score for score in own if score is not None]
        if len(by_name[name]) < len(own):
            raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return by_name
