"""Keep a merge: as a file, a plot, and a run of one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.merging.choosing import Choice
from flows.merging.preparing import Aligned, MergePlan
from flows.merging.result import MergeResult, draw
from flows.recording import provenance
from flows.stored import Run
from storage.checkpoints.writing import write_checkpoint
from storage.rounds.commits import Score
from storage.runs.names import new_name, run_address
from storage.values.state import Match
from tasks.matching.averaging import average
from tasks.matching.groups import Permutation, Tensors
from tasks.merging.blends import blended
from tasks.merging.keeping import keep_merge
from tasks.user_code import short_name


def keep(plan: MergePlan, networks: Aligned, choice: Choice) -> MergeResult:
    """Write the chosen mean of aligned networks: its file and plot, or its run."""
    merged = _merged(plan, networks.states, choice)
    final = list(choice.scores.values())[-1] if choice.scores else None
    total = sum(choice.blend.coefficients)
    model = short_name(plan.subject.objective.model.model)
    name = plan.config.name or new_name(plan.config.root, "merge", model)
    result = MergeResult(
        name=name,
        run=_keep_run(plan, networks, name, merged, final) if plan.config.kept else None,
        scores=dict(choice.scores),
        paths={kind: list(scores) for kind, scores in choice.paths.items()},
        coefficients=tuple(c / total for c in choice.blend.coefficients),
        moved=tuple(_moved(plan, order) for order in networks.orders),
        function_error=plan.function_error,
        coverage=plan.units.coverage,
        free_units=plan.units.free_units,
        pinned_units=sum(plan.units.pinned_units.values()),
    )
    return _written(plan, result, merged)


def _merged(plan: MergePlan, aligned: Sequence[Tensors], choice: Choice) -> Tensors:
    if plan.config.repair:
        return blended(plan.gallery, replace(choice.blend, repair=True)).state_dict()
    return average(aligned, choice.blend.coefficients, dict(choice.blend.layers))


def _moved(plan: MergePlan, order: Permutation) -> float:
    """The share of units that are not where they were; of a mixture, those that are mostly another one."""
    home = plan.units.identity()
    now = {n: t.argmax(1) if t.is_floating_point() else t for n, t in order.items()}
    total = sum(table.numel() for table in home.values())
    return sum((now[name] != table).sum().item() for name, table in home.items()) / max(total, 1)


def _keep_run(plan: MergePlan, networks: Aligned, name: str, merged: Tensors, score: Score | None) -> Run:
    orders, aligned = networks.orders, networks.states
    config, model = plan.config, plan.subject.objective.model
    described = plan.subject.partitions.describe(0) if plan.subject.partitions else None
    recorded = config.model_dump(mode="json", exclude={"root"})
    standing = {"algorithm": {"name": "merge"}, "model_options": config.model_options or {}}
    attributes: dict[str, Any] = {
        "config": recorded | standing,
        "algorithm": f"merge of {len(orders)} networks, matched by {config.match}",
        "data": {"examples": described.examples if described else 0, "held_out": score.examples if score else 0},
        "network": {"inputs": model.inputs, "outputs": model.outputs},
        "fingerprint": None,
        **provenance(),
    }
    matches = [
        Match(order, plan.units.similarity(aligned[0], state))
        for order, state in zip(orders, aligned, strict=True)
    ]
    address = run_address(config.root, name)
    keep_merge(address, model.build(), plan.states, matches, merged, attributes, score)
    return Run(address, config.root)


def _written(plan: MergePlan, result: MergeResult, merged: Tensors) -> MergeResult:
    config = plan.config
    plot = config.plot
    if plot is None and config.out and result.paths:
        plot = str(Path(config.out).with_suffix(".png"))
    if config.out:
        write_checkpoint(config.out, merged)
    if plot and result.paths:
        draw(result, Path(plot))
    return replace(result, out=config.out, plot=plot if result.paths else None)
