"""Score what a merge may give, choose, and keep it: as a file, a plot, and a run of one round."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.config.merge import MergeConfig
from flows.config.resolving import short_name
from flows.merging.preparing import MergePlan
from flows.merging.result import MergeResult, draw
from flows.training.preparing import provenance
from storage.errors import DataError
from storage.rounds.commits import Score
from storage.runs.checkpoints import write_checkpoint
from storage.runs.names import run_path
from storage.runs.run import Run
from storage.values.state import Match
from tasks.matching.averaging import average
from tasks.matching.groups import Permutation, Tensors
from tasks.matching.search.evidence import Evidence
from tasks.matching.search.networks import cycle_error, direct_matches
from tasks.merging.blends import Blend, blended
from tasks.merging.keeping import keep_merge

Scorer = Callable[[list[Blend]], list[Score | None]]


def wanted(plan: MergePlan, places: tuple[str, ...]) -> Blend:
    """The mean that the configuration asks for, of networks at these places."""
    config = plan.config
    chosen = tuple(config.coefficients or [1.0] * len(places))
    return Blend(places, chosen, layers=tuple(config.layers.items()))


def candidates(plan: MergePlan, places: tuple[str, ...]) -> dict[str, list[Blend]]:
    """What is scored, by name; of two networks also the points of the paths, the first network at the front."""
    config, count = plan.config, len(places)
    single = [tuple(float(i == j) for j in range(count)) for i in range(count)]
    plain, matched = wanted(plan, plan.places), wanted(plan, places)
    kinds = {"plain mean": plain, "merged": matched}
    if config.repair:
        kinds["merged, repaired"] = replace(matched, repair=True)
    found = {f"parent {place}": [Blend(plan.places, single[i])] for i, place in enumerate(config.networks)}
    found["ensemble"] = [replace(plain, how="ensemble")]
    for name, blend in kinds.items():
        found[name] = [blend]
        if count == 2:
            steps = [i / (config.points - 1) for i in range(config.points)]
            found[name] += [replace(blend, coefficients=(1 - step, step), layers=()) for step in steps]
    return found


def scored(blends: dict[str, list[Blend]], scorer: Scorer) -> dict[str, list[Score]]:
    """The scores of the candidates; raises `DataError` where the held-out examples give none."""
    flat = [blend for each in blends.values() for blend in each]
    scores = iter(scorer(flat))
    found: dict[str, list[Score]] = {}
    for name, each in blends.items():
        here = [next(scores) for _ in each]
        found[name] = [score for score in here if score is not None]
        if len(found[name]) < len(here):
            raise DataError(f"{name} has no finite loss on the held-out examples; check the networks and the data")
    return found


def keep(
    plan: MergePlan,
    orders: Sequence[Permutation],
    aligned: Sequence[Tensors],
    scorer: Scorer,
    places: tuple[str, ...],
) -> MergeResult:
    """Score, choose the coefficients, and write the merged network, its run and its plot."""
    config = plan.config
    name = "merged, repaired" if config.repair else "merged"
    blend = wanted(plan, places)
    results: dict[str, list[Score]] = {}
    if plan.subject.partitions is not None:
        blends = candidates(plan, places)
        results = scored(blends, scorer)
        if config.average == "best":
            blend = _best(blends[name][1:], results[name][1:])
            index = blends[name].index(replace(blend, repair=config.repair), 1)
            for found in (results[kind] for kind in ("plain mean", "merged", name)):
                found[0] = found[index]
    merged = average(aligned, blend.coefficients, dict(blend.layers))
    if config.repair:
        merged = blended(plan.gallery, replace(blend, repair=True)).state_dict()
    score = results[name][0] if results else None
    run = _keep_run(plan, orders, aligned, merged, score)
    total = sum(blend.coefficients)
    result = MergeResult(
        run=run,
        scores={kind: found[0] for kind, found in results.items()},
        paths={kind: found[1:] for kind, found in results.items() if len(found) > 1},
        coefficients=tuple(c / total for c in blend.coefficients),
        moved=tuple(_moved(plan, order) for order in orders),
        function_error=plan.function_error,
        coverage=plan.units.coverage,
        cycle_error=_cycles(plan),
    )
    return _written(config, result, merged)


def _examples(plan: MergePlan) -> int:
    """How many training examples the data has; 0 without data."""
    return plan.subject.partitions.describe(0).examples if plan.subject.partitions else 0


def _best(blends: Sequence[Blend], scores: Sequence[Score]) -> Blend:
    order = sorted(range(len(blends)), key=lambda i: (-(scores[i].accuracy or 0.0), scores[i].loss))
    return blends[order[0]]


def _moved(plan: MergePlan, order: Permutation) -> float:
    """The share of units that are not where they were; of a mixture, those that are mostly another one."""
    home = plan.units.identity()
    now = {n: t.argmax(1) if t.is_floating_point() else t for n, t in order.items()}
    total = sum(table.numel() for table in home.values())
    return sum((now[name] != table).sum().item() for name, table in home.items()) / max(total, 1)


def _cycles(plan: MergePlan) -> float | None:
    config = plan.config
    if len(plan.states) < 3 or config.match != "weights" or config.soft is not None:
        return None
    return cycle_error(direct_matches(Evidence(plan.states, plan.units, "weights", config.metric)), plan.units)


def _keep_run(
    plan: MergePlan,
    orders: Sequence[Permutation],
    aligned: Sequence[Tensors],
    merged: Tensors,
    score: Score | None,
) -> Run:
    config, model = plan.config, plan.subject.objective.model
    name = config.name or f"merge-{short_name(model.model)}-{time.strftime('%Y%m%d')}-{secrets.token_hex(2)}"
    recorded = config.model_dump(mode="json", exclude={"root"})
    standing = {"algorithm": {"name": "merge"}, "model_options": config.model_options or {}}
    attributes: dict[str, Any] = {
        "config": recorded | standing,
        "algorithm": f"merge of {len(orders)} networks, matched by {config.match}",
        "data": {"examples": _examples(plan), "held_out": score.examples if score else 0},
        "fingerprint": None,
        **provenance(),
    }
    matches = [
        Match(order, plan.units.similarity(aligned[0], state))
        for order, state in zip(orders, aligned, strict=True)
    ]
    path = run_path(config.root, name)
    keep_merge(path, model.build(), plan.states, matches, merged, attributes, score)
    return Run(path)


def _written(config: MergeConfig, result: MergeResult, merged: Tensors) -> MergeResult:
    plot = config.plot
    if plot is None and config.out and result.paths:
        plot = str(Path(config.out).with_suffix(".png"))
    if config.out:
        write_checkpoint(config.out, merged)
    if plot and result.paths:
        draw(result, Path(plot))
    return replace(result, out=config.out, plot=plot if result.paths else None)
