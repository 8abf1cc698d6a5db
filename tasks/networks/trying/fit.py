"""Checks whether a network, its loss and its scores fit the examples, by trying them before a run begins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.storage.rounds.commits import COLUMNS
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import Examples, Tensors, first_tensor, single
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.splits.split import LARGEST_SCORE_BATCH, SCORE_BATCH
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.outputs import call, joined, output_of, tensor_in, tensors_in
from roundweave.tasks.networks.scores import (
    NEITHER,
    OWN_LOSS,
    UNKNOWN,
    check_merging,
    default_scores,
    metric_of,
    score_items,
    size_of,
    takes_labels,
    updated,
)
from roundweave.tasks.networks.trying.copies import check_apart, in_evaluation, tried_network
from roundweave.tasks.networks.trying.purity import check_pure
from roundweave.tasks.networks.trying.rules import find_rule, is_mean
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code

MANY = 512
"""The number of examples to try a score on that needs more than two, such as an area under a curve."""

MOST_GATHERED = 2**28
"""The most bytes that may be gathered for a score: all outputs, or a metric's states of all batches."""


MOST_SCORED = 2**25
"""The most numbers that a network gives at once when it is scored; their logarithms take as much memory again."""


@torch.inference_mode(False)  # as whoever asks for a round again may compute without gradients
@torch.enable_grad()
def check_fit(
    objective: Objective, partitions: Partitions, description: Description, partition: int, may_own: bool = False
) -> Objective:
    """Try an objective on two examples of a partition, and return it with its scores decided.

    If `may_own`, a network whose forward takes labels has the loss that it computes itself.

    Raises `ModelError` if the network, its loss or a given score does not fit. Default scores that do not fit are
    left out.
    """
    copied = objective.built
    check_apart(objective, network := objective.model.build(), copied)
    if may_own and takes_labels(network):
        objective = replace(objective, loss=OWN_LOSS)
    examples, more = partitions.sample(partition), functools.partial(partitions.sample, partition, spread=True)
    where = f"model {objective.model.name} on inputs of {_shapes(examples.inputs)}"
    advice = _advice(objective, examples)
    with failing_as(lambda error: ModelError(f"{where} fails with {one_line(error)}{advice}")):
        with in_evaluation(network), torch.no_grad(), pinned(0, threads=1, fill=True):
            outputs = objective.outputs(network, examples.inputs, examples.targets)
            rule = find_rule(objective, network, outputs, examples, description)
            objective = replace(objective, rule=rule)
            if misfit := _misfit(objective, outputs, examples.targets):
                raise ModelError(where + misfit + advice)
            padded = partitions.loading.collate is not None
            trial = Trial(objective, network, outputs, examples.targets, more, description.held_out, padded)
            if objective.scores is None:
                fitting = tuple(filter(trial.fits, default_scores(objective.loss, description, rule)))
                objective = replace(objective, scores=fitting)
            _check_names(objective)
            whole = tuple(name for name, judge in objective.judges.items() if trial.is_whole(name, judge))
            if trial.single_loss and (rule.by_label is None or not is_mean(objective, network, more)):
                objective = replace(objective, rule=replace(rule, by_label=None))
                if description.held_out and "loss" not in whole:
                    raise ModelError(f"{NEITHER}, and its batches have no mean; give a number for each example")
        objective = replace(objective, whole=whole, score_batch=_score_batch(outputs, len(examples)))
        del trial, outputs  # they may be large
        with pinned(0, threads=1, fill=True):
            return tried_network(objective, network, examples)


def _score_batch(outputs: Any, examples: int) -> int:
    """Return the most examples that are scored at once, from the outputs for some: fewer where these are large."""
    output = tensor_in(outputs)
    each = 0 if output is None else output.numel() // examples
    return max(1, min(LARGEST_SCORE_BATCH, MOST_SCORED // max(1, each)))


def _check_names(objective: Objective) -> None:
    """Raise `ModelError` if two scores have the same name, or one that is another number's of each round."""
    scores = ["loss", *(score if isinstance(score, str) else score.name for score in objective.scores or ())]
    names = [*COLUMNS, *scores]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ModelError(f"the name {twice[0]!r} of a score is taken by another number; rename it")


def _shapes(inputs: Tensors) -> str:
    """Return the shape and dtype of inputs as text, or those of several by name."""
    if isinstance(inputs, torch.Tensor):
        return f"shape {tuple(inputs.shape)} {dtype_name(inputs.dtype)}"
    return ", ".join(f"{name} {tuple(tensor.shape)} {dtype_name(tensor.dtype)}" for name, tensor in inputs.items())


def _advice(objective: Objective, examples: Examples) -> str:
    """Return what to do if a network fails on examples whose types few networks take, as the end of a line."""
    inputs, targets, model = examples.inputs, examples.targets, objective.model.model
    if isinstance(targets, torch.Tensor) and targets.dtype == torch.bool:
        return "; give targets that are true or false as whole numbers, or as floats"
    if isinstance(targets, torch.Tensor) and not targets.is_floating_point() and targets.shape[1:] == (1,):
        return "; give labels without their second axis"
    whole = isinstance(inputs, torch.Tensor) and not inputs.is_floating_point()
    return "; give the inputs as floats" if whole and isinstance(model, str) and model != "gpt" else ""


def _misfit(objective: Objective, outputs: Any, targets: Tensors) -> str | None:
    """Why outputs do not fit targets (examples, *), as the end of a sentence that begins with the model's name."""
    axis, classes = objective.rule.axis, objective.rule.classes
    if objective.loss == "cross_entropy" and classes:
        outputs = output_of(outputs)
        if axis is None:
            wanted = (*targets.shape, classes)
            return (
                f" gives outputs of shape {tuple(outputs.shape)}, but one for each class of each label is {wanted}"
            )
        if axis != UNKNOWN and outputs.shape[axis] < classes:
            return f" gives {outputs.shape[axis]} outputs, but labels go up to {classes - 1}"
    if objective.loss == "cross_entropy" and not classes and targets.shape[1:] == (1,):
        return ": cross_entropy of a single share is always 0; give whole numbers as labels, or another loss"
    loss = objective.value(outputs, targets)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return ": the loss must be a single number, or one for each example"
    return None


def _check_paired(name: str, judge: Code, outputs: Any, targets: Tensors) -> None:
    """Raise `ModelError` if a loss or a score of the user's compares each output with each target.

    So do tensors of shapes (example, 1) and (example,), which broadcast to (example, example).
    """
    tensors = isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor)
    if not tensors or outputs.shape != (*targets.shape, 1) or len(targets) < 2:
        return
    paired = None
    with suppress(Exception):  # it may take outputs of their own shape alone
        paired = score_items(judge, outputs.squeeze(-1), targets).float().mean()
    found = score_items(judge, outputs, targets).float().mean()
    if paired is not None and not torch.allclose(paired, found, equal_nan=True):
        both = f"outputs of shape {tuple(outputs.shape)} and targets of {tuple(targets.shape)}"
        raise ModelError(f"{name} compares each of {both} with each; give both the same shape")


@dataclass(frozen=True, eq=False)
class Trial:
    """A network's outputs for two examples and their targets; `more(n)` gives n examples if two are too few.

    `padded` says whether the user's function makes batches, whose examples may have other lengths in each.
    """

    objective: Objective
    network: torch.nn.Module
    outputs: Any
    targets: Tensors
    more: Callable[[int], Examples]
    held_out: int
    padded: bool = False

    def fits(self, score: str) -> bool:
        """Tell whether a built-in score fits the outputs."""
        try:
            score_items(score, self.outputs, self.targets, self.objective.rule)
        except ModelError:
            return False
        return True

    def is_whole(self, name: str, judge: str | Code) -> bool:
        """Tell whether a score or a loss gives a single number of all outputs at once.

        Raises `ModelError` if it does not fit the outputs, or would have to gather too many bytes of them.
        """
        if isinstance(judge, str):
            score_items(judge, self.outputs, self.targets, self.objective.rule)
            return False
        with failing_as(lambda error: ModelError(f"score {judge.reference} fails with {one_line(error)}")):
            if metric_of(judge):
                self._check_metric(name, judge)
                return False
            ndim, given = self._items(judge)
            check_pure(name, judge, *given)
            _check_paired(name, judge, *given)
            if ndim:
                return False
        if name == "loss" and (self.padded or not self._are_of_examples):
            return False  # the mean of batches is reported
        if not self._are_of_examples:
            raise ModelError(
                f"{name} is one number of all outputs, and one of these is not (example, *); give one each example"
            )
        advice = "give a number for each example" + ("" if name == "loss" else ", use a metric of torchmetrics")
        self._check_size(f"{name} is one number of all outputs; those", self._bytes * self.held_out, advice)
        return True

    def _items(self, judge: Code) -> tuple[int, tuple[Any, Tensors]]:
        """Return how many axes the value of a judge has, and the outputs and targets of which it gives that."""
        given = self.outputs, self.targets
        # A function of all outputs may need more than two, such as one for each class.
        with suppress(Exception) if self._are_of_examples else nullcontext():
            return score_items(judge, *given, self.objective.rule).ndim, given
        return score_items(judge, *self._many).ndim, self._many

    @property
    def single_loss(self) -> bool:
        """Whether the loss is the user's, or the network's own, and gives a single number."""
        loss = self.objective.loss
        return loss == OWN_LOSS or (isinstance(loss, Code) and not self._items(loss)[0])

    @functools.cached_property
    def _are_of_examples(self) -> bool:
        """Whether all tensors of outputs and targets are (example, *), so that those of batches may be joined."""
        count, outputs = len(first_tensor(self.targets)), tensors_in(self.outputs)
        return bool(outputs) and all(each.shape[:1] == (count,) for each in [*outputs, *tensors_in(self.targets)])

    @property
    def _bytes(self) -> int:
        """The size of an example's outputs."""
        return sum(tensor[:1].nbytes for tensor in tensors_in(self.outputs))

    def _check_metric(self, name: str, judge: Code) -> None:
        outputs, targets = output_of(self._many[0]), single(self._many[1], f"metric {name}")
        check_merging(judge, outputs, targets)
        batch = size_of(updated(judge, outputs[:SCORE_BATCH], targets[:SCORE_BATCH]))
        size = batch * math.ceil(self.held_out / SCORE_BATCH)
        kept = f"{name} is a metric that keeps {batch / 1e6:.1f} MB of each {SCORE_BATCH} examples; those"
        self._check_size(kept, size, "choose one that keeps sums")

    def _check_size(self, what: str, size: int, advice: str) -> None:
        if size > MOST_GATHERED:
            raise ModelError(
                f"{what} of {self.held_out} held-out examples take {size / 1e9:.1f} GB, and at most "
                f"{MOST_GATHERED / 1e9:.1f} GB are gathered; {advice}, or hold out fewer examples"
            )

    @functools.cached_property
    def _many(self) -> tuple[Any, Tensors]:
        """Outputs and targets of up to 512 examples, evenly spread over the partition."""
        examples = self.more(max(2, min(MANY, MOST_GATHERED // max(1, self._bytes))))
        batches = examples.slices(SCORE_BATCH)
        return joined([call(self.network, batch.inputs) for batch in batches]), examples.targets
