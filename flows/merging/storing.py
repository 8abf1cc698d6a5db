"""Stores a merge as a file, a plot and a run of one round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flows.merging.choosing import Choice
from flows.merging.preparing import Aligned, MergePlan
from flows.merging.result import MergeResult
from flows.recording import provenance
from flows.stored import Run
from storage.checkpoints.writing import write_checkpoint
from storage.rounds.commits import Score
from storage.runs.names import new_name, run_address
from storage.values.state import Match
from tasks.matching.averaging import average
from tasks.matching.groups import Permutation, Tensors
from tasks.merging.blends import blended
from tasks.merging.storing import keep_merge
from tasks.user_code import short_name


def keep(plan: MergePlan, networks: Aligned, choice: Choice) -> MergeResult:
    """Write the chosen mean of the aligned networks to a file, a plot or a run, as the configuration says."""
    config, blend, units = plan.config, choice.blend, plan.units
    if config.repair:
        merged: Tensors = blended(plan.gallery, replace(blend, repair=True)).state_dict()
    else:
        merged = average(networks.states, blend.coefficients, dict(blend.layers))
    name = config.name or new_name(config.root, "merge", short_name(plan.subject.objective.model.model))
    score = list(choice.scores.values())[-1] if choice.scores else None
    plot = config.plot or (config.out and str(Path(config.out).with_suffix(".png")))
    result = MergeResult(
        name=name,
        run=_keep_run(plan, networks, name, merged, score) if config.kept else None,
        scores=dict(choice.scores),
        paths={kind: list(scores) for kind, scores in choice.paths.items()},
        coefficients=tuple(c / sum(blend.coefficients) for c in blend.coefficients),
        moved=tuple(_moved(plan, order) for order in networks.orders),
        function_error=plan.function_error,
        coverage=units.coverage,
        free_units=units.free_units,
        pinned_units=sum(units.pinned_units.values()),
        out=config.out,
        plot=plot if choice.paths else None,
    )
    if config.out:
        write_checkpoint(config.out, merged)
    if result.plot:
        result.figure().savefig(result.plot, dpi=120)
    return result


def _moved(plan: MergePlan, order: Permutation) -> float:
    """The share of units that moved to another place; in a mixture, those that are mostly another unit."""
    home = plan.units.identity()
    now = {n: t.argmax(1) if t.is_floating_point() else t for n, t in order.items()}
    total = sum(table.numel() for table in home.values())
    return sum((now[name] != table).sum().item() for name, table in home.items()) / max(total, 1)


def _keep_run(plan: MergePlan, networks: Aligned, name: str, merged: Tensors, score: Score | None) -> Run:
    orders, aligned = networks.orders, networks.states
    config, model = plan.config, plan.subject.objective.model
    described = plan.subject.partitions.describe(0) if plan.subject.partitions else None
    recorded = config.model_dump(mode="json", exclude={"root"})
    attributes = {
        "config": recorded | {"algorithm": {"name": "merge"}, "model_options": config.model_options or {}},
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
