"""Checks whether a network, its loss and its scores fit the examples, by trying them before a run begins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from storage.errors import ModelError, RoundweaveError, failing_as, one_line
from storage.values.tensors import dtype_name
from tasks.data.examples import Examples
from tasks.data.partitions import Description, Partitions
from tasks.data.splits.split import SCORE_BATCH
from tasks.networks.losses import class_axis
from tasks.networks.metrics import check_merging, metric_of, size_of, updated
from tasks.networks.objective import Objective
from tasks.networks.scores import default_scores, score_items
from tasks.numerics import pinned
from tasks.user_code import Code

MANY = 512
"""The number of examples to try a score on that needs more than two, such as an area under a curve."""

MOST_GATHERED = 2**28
"""The most bytes that may be gathered for a score: all outputs, or a metric's states of all batches."""


def check_fit(objective: Objective, partitions: Partitions, description: Description, partition: int) -> Objective:
    """Try an objective on two examples of a partition, and return it with its scores decided.

    Raises `ModelError` if the network, its loss or a given score does not fit. Default scores that do not fit are
    left out.
    """
    examples, more = partitions.sample(partition), functools.partial(partitions.sample, partition, spread=True)
    model = objective.model.model
    name = model.reference if isinstance(model, Code) else model
    where = f"model {name} on inputs of shape {tuple(examples.inputs.shape)} {dtype_name(examples.inputs.dtype)}"
    try:
        with failing_as(lambda error: ModelError(f"{where} fails with {one_line(error)}")):
            return _tried(objective, examples, more, description)
    except _Misfit as misfit:
        raise ModelError(f"{where}{misfit}") from None


class _Misfit(RoundweaveError):
    """Raised for what does not fit; its text ends a sentence that begins with the model's name."""


def _tried(
    objective: Objective, examples: Examples, more: Callable[[int], Examples], description: Description
) -> Objective:
    network = objective.network(objective.initial()).eval()
    with torch.no_grad(), pinned(0, threads=1):
        outputs = network(examples.inputs)
        if not isinstance(outputs, torch.Tensor):
            raise _Misfit(
                f" gives a {type(outputs).__name__}, and outputs must be one tensor; "
                "wrap the model in a module whose forward returns the tensor, such as its .logits"
            )
        if misfit := _misfit(objective, outputs, examples.targets, description.classes):
            raise _Misfit(f" {misfit}")
        loss = objective.value(outputs, examples.targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise _Misfit(": the loss must be a single number, or one for each example")
        trial = Trial(network, outputs, examples.targets, more, description.held_out)
        if objective.scores is None:
            fitting = []
            for score in default_scores(objective.loss, description):
                with suppress(ModelError):
                    trial.is_whole(score, score)
                    fitting.append(score)
            objective = replace(objective, scores=tuple(fitting))
        _check_names(objective)
        whole = tuple(name for name, judge in objective.judges.items() if trial.is_whole(name, judge))
        return replace(objective, whole=whole)


def _check_names(objective: Objective) -> None:
    """Raise `ModelError` if two scores have the same name, or one is called loss."""
    names = ["loss", *(score if isinstance(score, str) else score.name for score in objective.scores or ())]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(f"two numbers would be called {name!r}, of the scores and the loss; rename one")


def _misfit(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str | None:
    """Why outputs (examples, *) are not logits for labels (examples, *); None if they are, or need not be."""
    if objective.loss != "cross_entropy" or not classes:
        return None
    axis = class_axis(outputs, targets)
    if axis is None:
        wanted = (*targets.shape, classes)
        return f"gives outputs of shape {tuple(outputs.shape)}, but one for each class of each label is {wanted}"
    count = outputs.shape[axis]
    return f"gives {count} outputs, but labels go up to {classes - 1}" if count < classes else None


@dataclass(frozen=True, eq=False)
class Trial:
    """A network's outputs for two examples and their targets; `more(n)` gives n examples if two are too few."""

    network: torch.nn.Module
    outputs: torch.Tensor
    targets: torch.Tensor
    more: Callable[[int], Examples]
    held_out: int

    def is_whole(self, name: str, judge: str | Code) -> bool:
        """Whether a score or a loss gives a single number of all outputs at once.

        Raises `ModelError` if it does not fit the outputs, or would have to gather too many bytes of them.
        """
        if isinstance(judge, str):
            score_items(judge, self.outputs, self.targets)
            return False
        with failing_as(lambda error: ModelError(f"score {judge.reference} fails with {one_line(error)}")):
            if metric_of(judge):
                self._check_metric(name, judge)
                return False
            if self._items(judge).ndim:
                return False
        other = "" if name == "loss" else ", use a metric of torchmetrics"
        self._check_size(
            f"{name} is one number of all outputs; those",
            self.outputs[:1].nbytes * self.held_out,
            f"give a number for each example{other}",
        )
        return True

    def _items(self, judge: Code) -> torch.Tensor:
        with suppress(Exception):  # a function of all outputs may need more than two, such as one for each class
            return score_items(judge, self.outputs, self.targets)
        return score_items(judge, *self._many)

    def _check_metric(self, name: str, judge: Code) -> None:
        outputs, targets = self._many
        check_merging(judge, outputs, targets)
        batch = size_of(updated(judge, outputs[:SCORE_BATCH], targets[:SCORE_BATCH]))
        batches = math.ceil(self.held_out / SCORE_BATCH)
        self._check_size(
            f"{name} is a metric that keeps {batch / 1e6:.1f} MB of each {SCORE_BATCH} examples; those",
            batch * batches,
            "choose one that keeps sums",
        )

    def _check_size(self, what: str, size: int, advice: str) -> None:
        if size > MOST_GATHERED:
            raise ModelError(
                f"{what} of {self.held_out} held-out examples take {size / 1e9:.1f} GB, and at most "
                f"{MOST_GATHERED / 1e9:.1f} GB are gathered; {advice}, or hold out fewer examples"
            )

    @functools.cached_property
    def _many(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and targets of up to 512 examples, evenly spread over the partition."""
        examples = self.more(max(2, min(MANY, MOST_GATHERED // max(1, self.outputs[:1].nbytes))))
        batches = examples.inputs.split(SCORE_BATCH)
        return torch.cat([self.network(batch) for batch in batches]), examples.targets
