"""Reduces that withstand corrupted updates, and their base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.reduces.tree import Gather
from roundweave.tasks.numerics.pieces import accumulator, in_pieces, is_float


@dataclass(frozen=True)
class Robust(Gather):
    """Base class of reduces that take a robust center of the updates instead of their mean.

    The direction, the float buffers and each of the extras have separate centers, so that all of them are
    protected. Integer and bool buffers take their lower median. Weights are ignored, because a corrupted partition
    may claim any weight. A subclass defines `center`, and `needs` if it needs more than one update.

    >>> class Largest(Robust):
    ...     def center(self, points):
    ...         return points.max(0).values
    >>> updates = [Update({"float32": torch.tensor([number, -number])}) for number in (1.0, 2.0)]
    >>> Largest()(State({}), updates).direction["float32"].tolist()
    [2.0, -1.0]
    """

    @abstractmethod
    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to their center (elements,), in the accumulator type."""

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """Return the center of the updates, one vector (elements,) per dtype.

        Raises `RoundFailed` if there are too few updates.
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
        points = torch.empty(len(group), sum(sizes.values()), dtype=wide)
        for row, vectors in zip(points, group, strict=True):
            torch.cat([vectors[dtype].to(wide) for dtype in sizes], out=row)
        center = self._center_of_finite(points)
        if center.shape != points.shape[1:]:
            shapes = f"{tuple(points.shape)} to {tuple(points.shape[1:])}, not {tuple(center.shape)}"
            raise RoundFailed(f"the center of reduce {type(self).__name__} must go from {shapes}")
        parts = center.split(list(sizes.values()))
        return exact | {k: part.to(getattr(torch, k)) for k, part in zip(sizes, parts, strict=True)}

    def _center_of_finite(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to their center (elements,).

        An element that is not finite in some point, such as that of a mask, has no distance and takes the median.
        """
        finite = points.isfinite().all(0)
        if finite.all():
            return self.center(points)
        center = _lower_median(points)
        center[finite] = self.center(points[:, finite])
        return center


def _lower_median(points: torch.Tensor) -> torch.Tensor:
    """Return the lower median of points (updates, elements) as (elements,). Each element occurs in an update."""
    return in_pieces(lambda piece: piece.sort(0).values[(len(points) - 1) // 2], points)


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate (Yin et al. 2018, Definition 1).

    For an even number of updates it is the mean of the middle two values. The reduce withstands corrupted updates
    that are fewer than half: each coordinate stays in the range of the honest updates.

    >>> Median().center(torch.tensor([[1.0, 5.0], [2.0, 4.0], [1e6, -1e6]])).tolist()
    [2.0, 4.0]
    """

    elementwise = True

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to their median (elements,)."""
        updates = len(points)
        middle = slice((updates - 1) // 2, updates // 2 + 1)
        return in_pieces(lambda piece: piece.sort(0).values[middle].mean(0), points)


@dataclass(frozen=True)
class Withstanding(Robust):
    """Base class of reduces that withstand `f` corrupted updates."""

    f: int

    def __post_init__(self) -> None:
        if self.f < 0:
            raise UsageError(f"{type(self).__name__} needs f = 0 or more corrupted updates, not {self.f}")


@dataclass(frozen=True)
class TrimmedMean(Withstanding):
    """The mean of each coordinate without its `f` smallest and `f` largest values (Yin et al. 2018, Definition 2).

    The reduce needs 2 f + 1 updates. It withstands `f` corrupted updates: each coordinate stays in the range of
    the honest updates.

    >>> TrimmedMean(1).center(torch.tensor([[1.0], [2.0], [3.0], [-1e6]])).tolist()
    [1.5]
    """

    @property
    def needs(self) -> int:
        return 2 * self.f + 1

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to their trimmed mean (elements,)."""
        kept = slice(self.f, len(points) - self.f)
        return in_pieces(lambda piece: piece.sort(0).values[kept].mean(0), points)


@dataclass(frozen=True)
class Krum(Withstanding):
    """The update with the smallest sum of squared distances to its n - f - 2 nearest updates of n.

    See Blanchard et al. 2017, section 4. The reduce withstands `f` corrupted updates of n if n is at least 2 f +
    3. With `keep` above 1 it is Multi-Krum, the mean of the `keep` best updates.

    >>> Krum(1).center(torch.tensor([[1.0], [2.0], [2.5], [4.0], [1e6]])).tolist()
    [2.0]
    """

    keep: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep < 1:
            raise UsageError(f"krum needs keep = 1 or more updates, not {self.keep}")

    @property
    def needs(self) -> int:
        """The fewest updates: enough for Krum's bound, and for `keep` honest ones."""
        return max(2 * self.f + 3, self.f + self.keep)

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to the best ones' mean (elements,).

        Of equal updates the first is chosen.
        """
        return points[krum_scores(_distances(points), self.f).argsort(stable=True)[: self.keep]].mean(0)


def _distances(points: torch.Tensor) -> torch.Tensor:
    """Return the squared distances between points (updates, elements), float64 (updates, updates)."""
    distances = torch.zeros(len(points), len(points), dtype=torch.float64)
    for i, j in combinations(range(len(points)), 2):
        distances[i, j] = distances[j, i] = (points[i] - points[j]).double().square().sum()
    return distances


def krum_scores(distances: torch.Tensor, f: int) -> torch.Tensor:
    """Return Krum's scores (updates,) of squared distances (updates, updates): sums over the n - f - 2 nearest."""
    # The first of the sorted distances is that of an update to itself, 0.
    return distances.sort(1).values[:, 1 : max(2, len(distances) - f - 1)].sum(1)


@dataclass(frozen=True)
class Bulyan(Withstanding):
    """The mean of the n - 4 f values nearest the median, per coordinate, of n - 2 f updates that Krum selects.

    See El Mhamdi et al. 2018, section 4. Krum selects the updates one after the other. The reduce withstands `f`
    corrupted updates of n if n is at least 4 f + 3, also updates that are far off in a few coordinates only.

    >>> Bulyan(1).center(torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [1e6]])).tolist()
    [2.0]
    """

    @property
    def needs(self) -> int:
        return 4 * self.f + 3

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to (elements,). Of equally good updates the first is selected."""
        distances, left, selected = _distances(points), [*range(len(points))], list[int]()
        while len(selected) < len(points) - 2 * self.f:
            scores = krum_scores(distances[left][:, left], self.f)
            selected.append(left.pop(int(scores.argmin())))
        chosen = points[sorted(selected)].sort(0).values
        middle = chosen[(len(chosen) - 1) // 2 : len(chosen) // 2 + 1].mean(0)
        nearest = (chosen - middle).abs().argsort(dim=0, stable=True)[: len(points) - 4 * self.f]
        return chosen.gather(0, nearest).mean(0)


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """The point with the smallest sum of distances to the updates. Each update counts once.

    Smoothed Weiszfeld steps find the point (Pillutla et al. 2022, Algorithm 2). They begin at the median of each
    coordinate and end when a step is shorter than `tolerance`. Distances below `smoothing` are raised to
    `smoothing`. Both are fractions of the median distance, which corrupted updates cannot change. The reduce
    withstands corrupted updates that are fewer than half. Unlike in the paper, updates have equal weights, because
    a corrupted partition may claim any weight.

    >>> GeometricMedian().center(torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])).tolist()
    [0.0, 0.0]
    """

    steps: int = 100
    tolerance: float = 1e-5
    smoothing: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or self.smoothing <= 0 or self.tolerance < 0:
            raise UsageError("geometric_median needs 1 step or more, smoothing above 0 and tolerance of 0 or more")

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """Reduce points (updates, elements) to their geometric median (elements,)."""
        center = in_pieces(lambda piece: piece.median(0).values, points)
        for _ in range(self.steps):
            distances = torch.stack([(point - center).double().norm() for point in points])
            scale = distances.median()
            if not scale:  # at least half of the updates are at the center, so there is no better point
                return center
            shares = 1 / distances.clamp(min=self.smoothing * scale)
            before, center = center, (shares / shares.sum()).to(points.dtype) @ points
            if (center - before).double().norm() <= self.tolerance * scale:
                break
        return center
