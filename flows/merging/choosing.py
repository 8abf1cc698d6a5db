"""Chooses the merged network: scores the candidate means of the networks and picks the coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from roundweave.flows.merging.preparing import MergePlan
from roundweave.storage.errors import DataError
from roundweave.storage.rounds.commits import Score
from roundweave.tasks.merging.gallery import Blend, Gallery

Scorer = Callable[[Gallery, list[Blend]], list[Score | None]]

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

    `places` are the files of the aligned networks, `scorer` scores a list of blends. Raises `DataError` if one has
    no finite loss on the held-out examples.
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
    found = iter(_finite(names, scorer(plan.gallery, list(every))))
    scores = {name: next(found) for name in blends}
    paths = {kind: [next(found) for _ in steps] for kind in kinds if steps}
    *_, (final, blend) = kinds.items()
    if config.average == "best":
        best = min(range(len(steps)), key=lambda i: (-(paths[final][i].accuracy or 0.0), paths[final][i].loss))
        blend = replace(blend, coefficients=(1 - steps[best], steps[best]))
        scores |= {kind: path[best] for kind, path in paths.items()}
    return Choice(blend, scores, paths)


def _finite(names: Sequence[str], scores: Sequence[Score | None]) -> list[Score]:
    """The scores of the blends of these names; raises `DataError` if one is None, for no finite loss."""
    found = [score for score in scores if score is not None]
    if len(found) < len(names):
        name = names[list(scores).index(None)]
        raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return found
