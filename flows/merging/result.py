"""The result of a merge: scores, the path between two networks, and where the merged network is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roundweave.flows.stored import Run
from roundweave.storage.rounds.commits import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MergeResult:
    """The merged network and how it compares.

    `run` is None if only a file was asked for. `scores` has a score for each parent, the ensemble, the plain mean,
    the merged and the repaired network; `paths` has scores at evenly spaced points from the first network to the
    second, by kind of mean. `coverage` is the share of tensors that can be permuted; some of their units may still
    be pinned. `coefficients` are those of the merged network; `moved` is the share of units that were moved, by
    network.
    """

    name: str
    run: Run | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    paths: dict[str, list[Score]] = field(default_factory=dict)
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
        """All numbers as a JSON object."""
        plain = ("coefficients", "moved", "function_error", "coverage", "free_units", "pinned_units")
        return {
            "run": self.run and self.run.name,
            "path": self.run and self.run.address,
            "out": self.out,
            "plot": self.plot,
            "scores": {name: score.row() for name, score in self.scores.items()},
            "paths": {name: [score.row() for score in scores] for name, scores in self.paths.items()},
            "barriers": self.barriers,
            **{name: getattr(self, name) for name in plain},
        }

    def figure(self) -> Figure:
        """A figure of loss and accuracy along the paths between two networks."""
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
