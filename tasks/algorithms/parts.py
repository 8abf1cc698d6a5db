"""The named parts of algorithms, and how a part is made of its name and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from storage.errors import UsageError
from tasks.algebra import Apply, Map, Part, Reduce
from tasks.options import options_of, valid
from tasks.reduces.table import REDUCES
from tasks.tables import Entry, Table, find, make, make_own
from tasks.user_code import Code, find_code, is_reference

MAPS: Table = {
    "gradient": Entry("one gradient of a partition, or of a batch of it", "tasks.maps.gradient:Gradient"),
    "local_steps": Entry("local training by any optimizer", "tasks.maps.local_steps:LocalSteps"),
    "fed_prox": Entry("local training held near the round's start", "tasks.maps.local_steps:FedProx"),
    "scaffold": Entry("local SGD with control variates", "tasks.maps.scaffold:Scaffold"),
    "downpour": Entry("gradients added up on the way", "tasks.maps.gradient:Downpour"),
    "elastic": Entry("local training tied to the server by a force", "tasks.maps.elastic:Elastic"),
}

APPLIES: Table = {
    "sgd": Entry("gradient descent with momentum", "tasks.applies.sgd:Sgd"),
    "adam": Entry("steps by running moments", "tasks.applies.adaptive:Adam"),
    "adagrad": Entry("steps by the sum of squares", "tasks.applies.adaptive:Adagrad"),
    "yogi": Entry("as adam, its second moment more careful", "tasks.applies.adaptive:Yogi"),
}

TABLES: Mapping[str, tuple[Table, type[Part]]] = {
    "map": (MAPS, Map),
    "reduce": (REDUCES, Reduce),
    "apply": (APPLIES, Apply),
}
"""Where the parts of each kind are named, and what each of them inherits."""

Chosen = type | Part | Code | str
"""A part by its class, whose options are open; one that is made; or the user's own, by value or reference."""


def part_options(part: Chosen) -> Mapping[str, tuple[Any, Any]]:
    """The (type, default) of the options of a part; one that is made already, or the user's own, has none."""
    return options_of(part) if isinstance(part, type) else {}


def choose(kind: str, named: str | Code) -> Chosen:
    """The part of a kind that is named: its class, or the part itself where the name tells all, as ``krum:1``.

    The user's own stays as it is named. Raises `UsageError`.
    """
    table = TABLES[kind][0]
    if is_own_part(kind, named):
        return named
    assert isinstance(named, str)
    if ":" in named:
        made: Part = make(kind, named, table)
        return made
    chosen: type = find(kind, named, table, "FILE.py:function")[0].load()
    return chosen if isinstance(chosen, type) else chosen()


def is_own_part(kind: str, named: str | Code) -> bool:
    """Whether a part of a kind is the user's own: a value, or a reference that is not in the table."""
    return not isinstance(named, str) or (named.partition(":")[0] not in TABLES[kind][0] and is_reference(named))


def make_part(kind: str, named: str | Code, given: Mapping[str, Any]) -> Any:
    """The part of a kind that is named, with options; raises `UsageError` for those that it does not take so.

    >>> make_part("apply", "sgd", {"lr": 0.5, "lr_schedule": "cosine:8"})
    Sgd(lr=0.5, lr_schedule='cosine:8', warmup=0, momentum=0.0, nesterov=False)
    """
    part = choose(kind, named)
    taken = part_options(part)
    name = named.reference if isinstance(named, Code) else named
    for option, value in given.items():
        if option not in taken:
            raise UsageError(f"{kind} {name} takes no {option}; it takes {', '.join(taken) or 'no options'}")
        valid(f"{kind} {name}: {option}", value, TypeAdapter(taken[option][0]), strict=isinstance(value, bool))
    return made_part(kind, part, given)


def made_part(kind: str, part: Chosen, arguments: Mapping[str, Any]) -> Any:
    """The part itself: of a class with arguments; the user's own as its function gives it."""
    if isinstance(part, type):
        return part(**arguments)
    if isinstance(part, Code | str):
        return make_own(kind, find_code(part), TABLES[kind][1])
    return part
