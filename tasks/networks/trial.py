"""What kind of score each is, tried on outputs before a run begins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from storage.errors import ModelError, failing_as, one_line
from tasks.data.examples import Examples
from tasks.data.splits.split import SCORE_BATCH
from tasks.networks.metrics import check_merging, metric_of, size_of, updated
from tasks.networks.scores import score_items
from tasks.user_code import Code

MANY = 512
"""Examples that a score is tried on where two are too few: for an area under a curve, or to merge batches."""

MOST_GATHERED = 2**28
"""Bytes that are gathered for a score: all outputs, or what a metric keeps of each batch."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A network's outputs for two examples and their targets, and `more` examples where those are too few."""

    network: torch.nn.Module
    outputs: torch.Tensor
    targets: torch.Tensor
    more: Callable[[int], Examples]
    held_out: int

    def is_whole(self, name: str, judge: str | Code) -> bool:
        """Whether a score or a loss is a function of all outputs at once.

        Raises `ModelError` where it does not fit the outputs, or would gather too much of them.
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
        with suppress(Exception):  # a function of all outputs may need more than two, such as one of each class
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
        """Outputs and targets of up to 512 examples from the first to the last."""
        examples = self.more(max(2, min(MANY, MOST_GATHERED // max(1, self.outputs[:1].nbytes))))
        batches = examples.inputs.split(SCORE_BATCH)
        return torch.cat([self.network(batch) for batch in batches]), examples.targets
