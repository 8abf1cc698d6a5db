"""Rules of mixtures of experts, which sort rows by the expert that each is for, and bring them back in order.

The experts may be in any order: rows then come in other runs, and the numbers of experts and of rows with them.
"""

from __future__ import annotations

from typing import Any

from roundweave.tasks.matching.tracing.axes import UNSEEN, Atom, Axes, UnitNumbers, pin_all, unify
from roundweave.tasks.matching.tracing.rules.registry import Result, Site, rule, tensors
from roundweave.tasks.matching.tracing.rules.sums import ordered, summed_product

PRESERVING = ("alias", "clone", "contiguous", "detach", "flatten", "reshape", "squeeze", "to", "_to_copy", "view")
"""Operations that change no numbers, but only their type or the shape of the tensor."""


PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "convolution")
STRICT = (
    *(*PRESERVING, *PRODUCTS, "add", "sub", "mul", "div", "neg", "exp", "log", "sigmoid", "tanh", "softplus"),
    *("softmax", "log_softmax", "layer_norm", "rms_norm", "permute", "transpose", "t", "unsqueeze"),
)
"""Operations that give unequal numbers for unequal ones, so one unit is ahead of another in any order."""


@rule("topk")
def _topk(site: Site, self: Axes, dim: int = -1, sorted: bool = True, **_: Any) -> Result:
    place = dim % len(self)
    if not sorted:
        self[place].pin(UNSEEN + "topk need not sort")
    if 1 in site.used and not site.unequal(self[place]):
        self[place].pin("of equal values topk gives the number of one by their order")
    others = [axis for d, axis in enumerate(self) if d != place]
    site.contract([self[place]], others)
    found = [*self[:place], Atom(site.shape[place], "topk"), *self[place + 1 :]]
    return found, UnitNumbers(found, "units", self[place])


@rule("sort")
def _sort(site: Site, self: Axes, descending: bool = False, **more: Any) -> Result:
    """Return one axis of unit numbers in their order gives rows in runs, one for each unit."""
    if len(self) != 1 or descending or not site.reads(self, "units"):
        return ordered(site, self, **more)
    rows = Atom(self[0].size, runs=self.of[0])
    return UnitNumbers([rows], "units", self.of[0]), UnitNumbers([rows], "order", self[0])


@rule("histc")
def _histogram(site: Site, self: Axes, bins: int = 100, min: int = 0, max: int = 0) -> Axes:
    if len(self) == 1 and self[0].runs and (min, max) == (0, bins - 1) and site.reads(self, "units", bins):
        return UnitNumbers([self.of[0]], "counts", self.of[0], self[0])
    site.mix(self, range(len(self)), "it is counted")
    return [Atom(site.shape[0], "it is counted")]


@rule("cumsum")
def _cumsum(site: Site, self: Axes, **more: Any) -> Axes:
    if site.reads(self, "counts"):
        return UnitNumbers(list(self), "ends", *self.of)
    return ordered(site, self, **more)


@rule("_grouped_mm", "transformers::grouped_mm_fallback")
def _grouped_mm(site: Site, offs: Axes, **arguments: Any) -> Axes:
    """Runs of rows (rows, in) times one matrix each, (runs, in, out); `offs` has the row where each run ends."""
    rows, (runs, *matrix) = tensors(arguments)
    if site.reads(offs, "ends", runs.size) and rows[0].root is offs.of[1].root:
        unify(runs, offs.of[0])
    else:
        pin_all([rows[0], runs, *offs], "runs of rows are told apart")
    product = summed_product(site, "ri,rio->ro", rows, [rows[0], *matrix])
    # Each row meets the matrix of its own run.
    site.dependences = [(axes, [*around, runs] if around else around) for axes, around in site.dependences]
    site.looked_up.append((runs, matrix, offs))
    return product
