"""The result of a merge: what was chosen, how it compares, and the file, the plot and the run that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundweave.flows.merging.preparing import MergePlan
from roundweave.flows.merging.writing import write_out
from roundweave.flows.recording import provenance
from roundweave.flows.stored import Run
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.names import new_name, run_address
from roundweave.storage.values.state import Match
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.merging.storing import merge_layout, persist_merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from roundweave.flows.merging.choosing import Aligned, Choice  # Prefect would make its home before a refusal


@dataclass(frozen=True)
class MergeResult:
    """The merged network and how it compares.

    `run` is None if only a file was asked for. `scores` has a score for each parent, the ensemble, the plain
    mean and each candidate for the merged network, of which `chosen` was taken, as `average` asks. `paths` has
    scores at evenly spaced points from the first network to the second, by kind of mean. `coverage` is the
    share of tensors that can be permuted; some of their units may still be pinned. `coefficients` are those of
    the merged network; `moved` is the share of units that were moved, by network.
    """

    name: str
    chosen: str = ""
    average: str = "mean"
    run: Run | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    paths: dict[str, list[Score]] = field(default_factory=dict, repr=False)
    coefficients: tuple[float, ...] = ()
    moved: tuple[float, ...] = ()
    function_error: float = 0.0
    coverage: float = 0.0
    free_units: int = 0
    pinned_units: int = 0
    out: str | None = None
    plot: str | None = None

    @property
    def barriers(self) -> dict[str, float]:
        """For each path, how far its loss rises above the straight line between the losses of the two networks.

        A mixture or a repair changes the ends of its own path, so all are compared with the ends of the plain one.
        """
        losses = {name: [score.loss for score in scores] for name, scores in self.paths.items()}
        return {name: barrier(each, losses["plain mean"]) for name, each in losses.items()}

    def summary(self) -> dict[str, Any]:
        """Return all numbers as a JSON object."""
        plain = ("coefficients", "moved", "function_error", "coverage", "free_units", "pinned_units")
        return {
            "run": self.run and self.run.name,
            "chosen": self.chosen,
            "path": self.run and self.run.address,
            "out": self.out,
            "plot": self.plot,
            "scores": {name: score.row() for name, score in self.scores.items()},
            "paths": {name: [score.row() for score in scores] for name, scores in self.paths.items()},
            "barriers": self.barriers,
            **{name: getattr(self, name) for name in plain},
        }

    def figure(self) -> Figure:
        """Return a figure of loss and accuracy along the paths between two networks."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.7), layout="constrained")
        with_accuracy = all(score.accuracy is not None for scores in self.paths.values() for score in scores)
        panels = figure.subplots(1, 2 if with_accuracy else 1, squeeze=False)[0]
        for axes, quantity in zip(panels, ("loss", "accuracy"), strict=False):
            for name, scores in self.paths.items():
                steps = [i / (len(scores) - 1) for i in range(len(scores))]
                axes.plot(steps, [getattr(score, quantity) for score in scores], marker=".", label=name)
            axes.set_xlabel("from the first network (0) to the second (1)")
            axes.set_ylabel(f"held-out {quantity}")
            axes.grid(alpha=0.3)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(self.paths))
        return figure


def barrier(losses: Sequence[float], plain: Sequence[float] | None = None) -> float:
    """How far a path's losses rise above the straight line between two losses, at least 0 (Frankle et al. 2020).

    These two are the ends of the path `plain`, by default of the path itself.
    """
    first, *_, final = plain or losses
    last = len(losses) - 1
    return max(0.0, *(loss - (first + (final - first) * i / last) for i, loss in enumerate(losses)))


def write_merge(plan: MergePlan, networks: Aligned, choice: Choice) -> MergeResult:
    """Write the chosen network to a file, a plot or a run, as the configuration says."""
    config, units, merged = plan.config, plan.units, choice.tensors
    name = config.name or new_name(config.root, "merge", plan.title)
    score = choice.scores.get(choice.name)
    plot = config.plot or (config.out and str(Path(config.out).with_suffix(".png")))
    result = MergeResult(
        name=name,
        chosen=choice.name,
        average=config.average or "mean",
        run=_persist_run(plan, networks, name, merged, score) if config.persisted else None,
        scores=dict(choice.scores),
        paths={kind: list(scores) for kind, scores in choice.paths.items()},
        coefficients=choice.coefficients,
        moved=tuple(units.moved(order) for order in networks.orders),
        function_error=plan.function_error,
        coverage=units.coverage,
        free_units=units.free_units,
        pinned_units=sum(units.pinned_units.values()),
        out=config.out,
        plot=plot if choice.paths else None,
    )
    if config.out:
        write_out(plan, merged)
    if result.plot:
        result.figure().savefig(result.plot, dpi=120)
    return result


def _persist_run(plan: MergePlan, networks: Aligned, name: str, merged: Tensors, score: Score | None) -> Run:
    config, aligned = plan.config, networks.states
    assert plan.model is not None  # a merge by names alone is kept as no run
    described = plan.gallery.partitions.describe(0) if plan.gallery else None
    recorded = config.model_dump(mode="json", exclude={"root"})
    attributes = {
        "config": recorded | {"algorithm": {"name": "merge"}, "model_options": config.model_options or {}},
        "algorithm": f"merge of {len(aligned)} networks, matched by {config.match}",
        "data": {
            "examples": described.examples if described else 0,
            "held_out": score.examples if score else 0,
            **vars(plan.meaning),
        },
        "network": {"inputs": plan.model.inputs, "outputs": plan.model.outputs},
        "fingerprint": None,
        **provenance(),
    }
    matches = [
        Match(order, plan.units.similarity(aligned[0], state))
        for order, state in zip(networks.orders, aligned, strict=True)
    ]
    address = run_address(config.root, name)
    persist_merge(address, merge_layout(plan.model.build()), plan.states, matches, merged, attributes, score)
    return Run(address, config.root)
