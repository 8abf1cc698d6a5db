"""The table of applies by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from storage.errors import UsageError
from tasks.algebra import Apply
from tasks.applies.schedules import Schedule
from tasks.tables import Entry, find, make_own
from tasks.user_code import Code

APPLIES: Mapping[str, Entry] = {
    "sgd": Entry("gradient descent with momentum", "tasks.applies.sgd:Sgd"),
    "adam": Entry("steps by running moments", "tasks.applies.adaptive:Adam"),
    "adagrad": Entry("steps by the sum of squares", "tasks.applies.adaptive:Adagrad"),
    "yogi": Entry("as adam, its second moment more careful", "tasks.applies.adaptive:Yogi"),
}


def find_apply(named: str | Code, options: Mapping[str, Any]) -> Apply:
    """The apply of a name with options, or the user's own, which takes none; raises `UsageError`.

    >>> find_apply("sgd", {"lr": 0.5, "schedule": "cosine:8"})
    Sgd(lr=0.5, momentum=0.0, nesterov=False, schedule=Schedule(shape='cosine:8', warmup=0))
    """
    if isinstance(named, Code):
        if options:
            raise UsageError(f"apply {named.reference} takes no options; its function decides them")
        own: Apply = make_own("apply", named, Apply)
        return own
    kind = find("apply", named, APPLIES, "FILE.py:function")[0].load()
    _check_options(named, options, inspect.signature(kind, eval_str=True).parameters)
    known: Apply = kind(
        **{name: Schedule(value) if name == "schedule" else value for name, value in options.items()}
    )
    return known


def _check_options(named: str, options: Mapping[str, Any], taken: Mapping[str, inspect.Parameter]) -> None:
    """Raise `UsageError` for an option that the apply does not take, or not so."""
    for name, value in options.items():
        if name not in taken:
            raise UsageError(f"apply {named} takes no {name}; it takes {', '.join(taken)}")
        wanted = type(taken[name].default)
        kinds: tuple[type, ...] = {float: (float, int), bool: (bool,)}.get(wanted, (str,))
        if not isinstance(value, kinds) or (wanted is float and isinstance(value, bool)):
            raise UsageError(f"apply {named}: {name} = {value!r} is no {wanted.__name__.lower()}")
