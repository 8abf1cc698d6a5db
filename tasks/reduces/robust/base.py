"""The base class of reduces that withstand corrupted updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from storage.errors import RoundFailed, UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.numerics import accumulator, is_float
from tasks.reduces.gather import Gather


@dataclass(frozen=True)
class Robust(Gather):
    """Base class of reduces that take a robust center of the updates instead of their mean.

    The direction, the float buffers and each of the extras have separate centers, so that all of them are
    protected; integer and bool buffers take their lower median. Weights are ignored, since a corrupted partition
    may claim any. A subclass defines `center` and `breakdown`, and `needs` if it needs more than one update.

    >>> class Largest(Robust):
    ...     def center(self, points):
    ...         return points.max(0).values
    >>> updates = [Update({"float32": torch.tensor([number, -number])}) for number in (1.0, 2.0)]
    >>> Largest()(State({}), updates).direction["float32"].tolist()
    [2.0, -1.0]
    """

    @property
    def needs(self) -> int:
        """The fewest updates that can be reduced."""
        return 1

    def bound(self, objective: Any, partitions: Any) -> Self:
        """This reduce; raises `UsageError` if there are fewer partitions than the updates that it needs."""
        if partitions.split.partitions < self.needs:
            raise UsageError(
                f"{self} needs {self.needs} updates, and there are {partitions.split.partitions} partitions; "
                "use more partitions, or another reduce"
            )
        return self

    def breakdown(self, updates: int) -> int:
        """How many of `updates` updates may be corrupted while the result stays among the honest ones."""
        return 0

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """The center, (elements,), of points (updates, elements) in the accumulator type."""
        raise NotImplementedError(f"{type(self).__name__} must define center(points)")

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """The center of the updates, one vector (elements,) per dtype.

        Raises `RoundFailed` if they are too few.
        """
        if len(updates) < self.needs:
            raise RoundFailed(
                f"round {state.round + 1}: {self} needs {self.needs} updates, {len(updates)} were accepted; "
                "use more partitions, or another reduce"
            )
        return Update(
            direction=self._centers([update.direction for update in updates]),
            buffers=self._centers([update.buffers for update in updates]),
            extras={
                slot: self._centers([update.extras[slot] for update in updates]) for slot in updates[0].extras
            },
            weight=sum(update.weight for update in updates),
        )

    def _centers(self, group: Sequence[Vectors]) -> Vectors:
        sizes = {dtype: vector.numel() for dtype, vector in group[0].items() if is_float(dtype)}
        exact = {
            dtype: _lower_median(torch.stack([vectors[dtype] for vectors in group]))
            for dtype in group[0]
            if dtype not in sizes
        }
        if not sizes:
            return exact
        wide = max((accumulator(dtype) for dtype in sizes), key=lambda dtype: dtype.itemsize)
        points = torch.stack([torch.cat([vectors[dtype].to(wide) for dtype in sizes]) for vectors in group])
        parts = self._center_of_finite(points).split(list(sizes.values()))
        return exact | {k: part.to(getattr(torch, k)) for k, part in zip(sizes, parts, strict=True)}

    def _center_of_finite(self, points: torch.Tensor) -> torch.Tensor:
        """The center, (elements,), of points (updates, elements).

        Elements that are not finite in every point, such as those of masks, have no distance and take the median.
        """
        finite = points.isfinite().all(0)
        if finite.all():
            return self.center(points)
        center = _lower_median(points)
        center[finite] = self.center(points[:, finite])
        return center


def _lower_median(points: torch.Tensor) -> torch.Tensor:
    """The lower median, (updates, elements) -> (elements,); each element is one of an update."""
    return points.sort(0).values[(len(points) - 1) // 2]
