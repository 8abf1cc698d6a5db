"""Which mean of the networks is the merged one: score what a merge may give, and choose the coefficients.

Where the way to merge is left open, too, one way is tried after the other until a barrier is low enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flows.merging.ladder import Ladder, Rung, Way, ways
from flows.merging.preparing import Aligned, MergePlan
from flows.merging.result import barrier
from storage.errors import DataError
from storage.rounds.commits import Score
from tasks.merging.blends import Blend

Scorer = Callable[[list[Blend]], list[Score | None]]
Matcher = Callable[[MergePlan], Aligned]
"""Puts the networks in the order that a configuration asks for."""

SHARE = 0.1
"""Of the parents' mean loss, so much may the loss rise where no bound is given."""

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


@dataclass(frozen=True)
class Found:
    """A way to merge: the plan with its options, the networks in order, what they give, and what was tried."""

    plan: MergePlan
    networks: Aligned
    choice: Choice
    ladder: Ladder | None = None


def find(plan: MergePlan, matcher: Matcher, scorer: Scorer) -> Found:
    """The way to merge that the configuration names, or the first whose barrier is low enough."""
    if plan.config.match == "auto":
        return _climb(plan, matcher, scorer)
    networks = matcher(plan)
    return Found(plan, networks, choose(plan, networks.places, scorer))


def _climb(plan: MergePlan, matcher: Matcher, scorer: Scorer) -> Found:
    """The first way whose barrier is within the bound, else the one with the lowest; no way is tried after it."""
    bound = _bound(plan, scorer)
    rungs: list[Rung] = []
    found: dict[Way, Found] = {}
    for way in ways(plan, rungs):
        began = time.perf_counter()
        here = replace(plan, config=way.chosen(plan.config))
        networks = matcher(here)
        choice = choose(here, networks.places, scorer)
        score = list(choice.scores.values())[-1]
        rungs.append(Rung(way, score, _rise(here, choice), time.perf_counter() - began))
        found[way] = Found(here, networks, choice)
        if Ladder(bound, tuple(rungs)).reached:
            break
    ladder = Ladder(bound, tuple(rungs))
    return replace(found[ladder.chosen.way], ladder=ladder)


def _bound(plan: MergePlan, scorer: Scorer) -> float:
    if plan.config.max_barrier is not None:
        return plan.config.max_barrier
    parents = scored(_parents(plan), scorer)
    losses = [parents[_parent(place)][0].loss for place in plan.config.networks]
    return SHARE * abs(sum(losses) / len(losses))


def choose(plan: MergePlan, places: tuple[str, ...], scorer: Scorer) -> Choice:
    """The mean that the configuration asks for, of aligned networks at these places, or the best of the path."""
    wanted = _wanted(plan, places)
    if plan.subject.partitions is None:
        return Choice(wanted)
    single, paths = _singles(plan, places), _paths(plan, places)
    scores = scored(single | {f"path {kind}": blends for kind, blends in paths.items()}, scorer)
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
    return _parents(plan) | {name: [blend] for name, blend in means.items()}


def _parents(plan: MergePlan) -> dict[str, list[Blend]]:
    count = len(plan.places)
    alone = [tuple(float(i == j) for j in range(count)) for i in range(count)]
    return {_parent(place): [Blend(plan.places, alone[i])] for i, place in enumerate(plan.config.networks)}


def _parent(place: str) -> str:
    return f"parent {place}"


def _paths(plan: MergePlan, places: tuple[str, ...]) -> dict[str, list[Blend]]:
    """Of two networks, evenly spaced points from the first to the second, by kind of mean."""
    if len(places) != 2:
        return {}
    steps = [i / (plan.config.points - 1) for i in range(plan.config.points)]
    return {
        kind: [replace(blend, coefficients=(1 - step, step), layers=()) for step in steps]
        for kind, blend in _kinds(plan, places).items()
    }


def scored(blends: Mapping[str, list[Blend]], scorer: Scorer) -> dict[str, list[Score]]:
    """All scores in one map; raises `DataError` where the held-out examples give none."""
    scores = iter(scorer([blend for each in blends.values() for blend in each]))
    by_name: dict[str, list[Score]] = {}
    for name, each in blends.items():
        here = [next(scores) for _ in each]
        by_name[name] = [score for score in here if score is not None]
        if len(by_name[name]) < len(here):
            raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return by_name


def _rise(plan: MergePlan, choice: Choice) -> float | None:
    """How far the loss rises above its parents' at a choice and along its path; None where it is a parent.

    Of more than two networks there is no path: above their mean, weighted as they are.
    """
    if not choice.blend.mixed:
        return None
    kind, final = list(choice.scores.items())[-1]
    weights = choice.blend.coefficients
    losses = [choice.scores[_parent(place)].loss for place in plan.config.networks]
    line = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)
    here = max(0.0, final.loss - line)
    if not choice.paths or plan.config.average == "best":
        return here
    return max(here, barrier([score.loss for score in choice.paths[kind]], (losses[0], losses[1])))


def remembered(scorer: Scorer) -> Scorer:
    """A scorer that scores each blend once."""
    known: dict[Blend, Score | None] = {}

    def score(blends: list[Blend]) -> list[Score | None]:
        new = [blend for blend in dict.fromkeys(blends) if blend not in known]
        known.update(zip(new, scorer(new) if new else [], strict=True))
        return [known[blend] for blend in blends]

    return score
