"""An algorithm as an entry of a table, and how its options are made of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.algorithms.parts import TABLES, Chosen, choose, made_part, part_options
from tasks.applies.memory import KeepExtras
from tasks.maps.local_steps import LocalSgd, LocalSteps
from tasks.reduces.matched import Matched
from tasks.user_code import Code
from tasks.when import Asynchronous, Synchronous, When


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

    def with_defaults(self, values: Mapping[str, Any]) -> Preset:
        """The same with other defaults, given by the names of options."""
        options = self.options
        return replace(self, defaults={to: value for name, value in values.items() for to in options[name].fields})

    def with_parts(self, named: Mapping[str, str | Code | None]) -> Preset:
        """The same with other parts in place of its own, by kind, which have their own defaults.

        Raises `UsageError`, `CodeError`.
        """
        chosen: dict[str, Any] = {kind: choose(kind, name) for kind, name in named.items() if name is not None}
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
        """The options that are given, and None for a default that yields to another one that is given."""
        either = self.map.either if isinstance(self.map, type) and issubclass(self.map, LocalSgd) else ()
        if any(given.get(name) is not None for name in either):
            return {**dict.fromkeys(either), **given}
        return dict(given)

    def build(self, given: Mapping[str, Any]) -> Algorithm:
        """The algorithm with options; raises `UsageError` for values that do not go together."""
        values = self.yielding(given)
        arguments: dict[str, dict[str, Any]] = {kind: {} for kind in (*TABLES, "when")}
        for name, option in self.options.items():
            for kind, to in option.fields:
                arguments[kind][to] = values.get(name, option.default)
        made = {kind: made_part(kind, getattr(self, kind), arguments[kind]) for kind in TABLES}
        return joined(Algorithm(**made, when=self.when(**arguments["when"])))


def joined(algorithm: Algorithm) -> Algorithm:
    """The algorithm with what its parts need of one another.

    Reduced extras are kept for the next round's maps. Networks that begin apart are matched to one another.
    """
    map, reduce, apply = algorithm.map, algorithm.reduce, algorithm.apply
    apart = isinstance(map, LocalSteps) and map.init == "per-partition"
    if apart and isinstance(algorithm.when, Asynchronous):
        raise UsageError("init = per-partition needs rounds in which all partitions begin together; leave it out")
    if apart and isinstance(reduce, Matched) and reduce.match_to is None:
        reduce = replace(reduce, match_to="many" if reduce.soft is None else "first")
    if map.extras and not isinstance(apply, KeepExtras):
        apply = KeepExtras(apply, map.extras)
    return replace(algorithm, reduce=reduce, apply=apply)
