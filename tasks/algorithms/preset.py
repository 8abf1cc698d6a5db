"""An algorithm as an entry of a table: its parts by name, and how its options are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.algebra import Algorithm, Apply, Map, Part, Reduce
from roundweave.tasks.algorithms.applies.memory import KeepExtras
from roundweave.tasks.algorithms.maps.optimizers import is_own_optimizer
from roundweave.tasks.algorithms.options import options_of, valid
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.table import REDUCES
from roundweave.tasks.algorithms.when import Synchronous, When
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import Entry, Table, find, make, make_own

MAPS: Table = {
    "gradient": Entry("one gradient of a partition, or of a batch of it", ".algorithms.maps.gradient:Gradient"),
    "local_steps": Entry("local training by any optimizer", ".algorithms.maps.local_steps:LocalSteps"),
    "fed_prox": Entry("local training held near the round's start", ".algorithms.maps.corrected:FedProx"),
    "scaffold": Entry("local SGD with control variates", ".algorithms.maps.corrected:Scaffold"),
    "fed_dyn": Entry("local training with a dynamic regularizer", ".algorithms.maps.federated:FedDyn"),
    "fed_nova": Entry("local SGD that tells its steps", ".algorithms.maps.federated:FedNova"),
    "mime_lite": Entry("local SGD with the server's momentum", ".algorithms.maps.federated:MimeLite"),
    "fair": Entry("local training that tells the loss at its start", ".algorithms.maps.federated:FairSteps"),
    "agnostic": Entry("local training that grows its own weight", ".algorithms.maps.federated:Agnostic"),
    "downpour": Entry("gradients added up on the way", ".algorithms.maps.gradient:Downpour"),
    "own_network": Entry("local training of a network of its own", ".algorithms.maps.corrected:OwnNetwork"),
    "elastic": Entry("local training tied to the server by a force", ".algorithms.maps.corrected:Elastic"),
}

APPLIES: Table = {
    "sgd": Entry("gradient descent with momentum", ".algorithms.applies.optimizers:Sgd"),
    "adam": Entry("steps by running moments", ".algorithms.applies.optimizers:Adam"),
    "adagrad": Entry("steps by the sum of squares", ".algorithms.applies.optimizers:Adagrad"),
    "yogi": Entry("as adam, its second moment more careful", ".algorithms.applies.optimizers:Yogi"),
}

TABLES: Mapping[str, tuple[Table, type[Part]]] = {
    "map": (MAPS, Map),
    "reduce": (REDUCES, Reduce),
    "apply": (APPLIES, Apply),
}
"""Where the parts of each kind are named, and what each of them inherits."""

Chosen = type[Part] | Part | Code | str
"""A part by its class, whose options are open; one that is made; or the user's own, by value or reference."""


@dataclass(frozen=True)
class Option:
    """One option of an algorithm: its annotated type, its default, and the (part, field) that it is for."""

    annotation: Any
    default: Any
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Preset:
    """An algorithm by the classes of its parts, and the `defaults` that differ from the parts' own.

    The keys of `defaults` are (part, field), such as ``("apply", "momentum")``.
    """

    map: Chosen
    reduce: Chosen
    apply: Chosen
    when: type[When] = Synchronous
    defaults: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def with_parts(self, named: Mapping[str, str | Code | None]) -> Preset:
        """The preset with other parts, by kind. Each new part has its own defaults.

        Raises `UsageError`, `CodeError`.
        """
        chosen: dict[str, Any] = {
            kind: choose_part(kind, name) for kind, name in named.items() if name is not None
        }
        kept = {(kind, name): value for (kind, name), value in self.defaults.items() if kind not in chosen}
        return replace(self, **chosen, defaults=kept)

    @property
    def options(self) -> dict[str, Option]:
        """The options of its parts by name; an apply's begin with ``outer_`` where the map has an optimizer."""
        parts = {"map": self.map, "reduce": self.reduce, "apply": self.apply, "when": self.when}
        outer = not isinstance(self.map, type) or "lr" in part_options(self.map)
        options: dict[str, Option] = {}
        for kind, part in parts.items():
            for name, (annotation, default) in part_options(part).items():
                full = f"outer_{name}" if kind == "apply" and outer else name
                before = options[full].fields if full in options else ()
                value = self.defaults.get((kind, name), default)
                options[full] = Option(annotation, value, (*before, (kind, name)))
        return options

    def yielding(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that are given, and None, or 1 for `lr`, for defaults that yield to them."""
        either = self.map.either if isinstance(self.map, type) else ()
        yielding = dict.fromkeys(either) if any(given.get(name) is not None for name in either) else {}
        own = {"lr": 1.0} if is_own_optimizer(given.get("optimizer", "")) else {}
        return {**yielding, **own, **given}

    def build(self, given: Mapping[str, Any]) -> Algorithm:
        """The algorithm with options; raises `UsageError` for values that do not go together."""
        values = self.yielding(given)
        arguments: dict[str, dict[str, Any]] = {kind: {} for kind in (*TABLES, "when")}
        for name, option in self.options.items():
            for kind, to in option.fields:
                arguments[kind][to] = values.get(name, option.default)
        made = {kind: _made(kind, getattr(self, kind), arguments[kind]) for kind in TABLES}
        return with_needs(Algorithm(**made, when=self.when(**arguments["when"])))


def part_options(part: Any) -> Mapping[str, tuple[Any, Any]]:
    """The (type, default) of the options of a part; one that is made already, or the user's own, has none."""
    return options_of(part) if isinstance(part, type) else {}


def choose_part(kind: str, named: str | Code) -> Chosen:
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
    part = choose_part(kind, named)
    taken = part_options(part)
    name = named.reference if isinstance(named, Code) else named
    check_taken(f"{kind} {name}", given, taken)
    for option, value in given.items():
        valid(f"{kind} {name}: {option}", value, TypeAdapter(taken[option][0]), strict=isinstance(value, bool))
    return _made(kind, part, given)


def check_taken(what: str, given: Iterable[str], taken: Iterable[str]) -> None:
    """Raise `UsageError` for options that an algorithm or a part does not take."""
    if refused := sorted({*given} - {*taken}):
        raise UsageError(f"{what} takes no {', '.join(refused)}; it takes {', '.join(taken) or 'no options'}")


def _made(kind: str, part: Chosen, arguments: Mapping[str, Any]) -> Any:
    """The part itself: of a class with arguments; the user's own as its function gives it."""
    if isinstance(part, type):
        return part(**arguments)
    if isinstance(part, Code | str):
        return make_own(kind, find_code(part), TABLES[kind][1])
    return part


def with_needs(algorithm: Algorithm) -> Algorithm:
    """The algorithm with what its parts need of one another.

    Reduced extras are kept for the next round's maps. Networks that begin apart are matched to one another.
    """
    map, reduce, apply = algorithm.map, algorithm.reduce, algorithm.apply
    if map.begins_apart and isinstance(reduce, Matched) and reduce.match_to is None:
        reduce = replace(reduce, match_to="many" if reduce.soft is None else "first")
    if lacking := tuple(slot for slot in map.extras if slot not in apply.keeps):
        apply = KeepExtras(apply, lacking, of_all=map.extras_of_all)
    return replace(algorithm, reduce=reduce, apply=apply)
