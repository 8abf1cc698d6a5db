"""The table of reduces by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tasks.algebra import Reduce
from tasks.named import make_named
from tasks.reduces.mean import Mean

REDUCES: Mapping[str, Callable[..., Reduce]] = {
    "mean": Mean,
}


def find_reduce(text: str) -> Reduce:
    """The reduce that a text names, with its arguments: ``median``, ``krum:1``; raises `UsageError`.

    >>> find_reduce("mean")
    Mean()
    """
    return make_named("reduce", text, REDUCES)
