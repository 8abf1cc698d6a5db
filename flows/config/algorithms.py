"""The algorithm of a configuration: its name, its parts and their options.

The options of an algorithm are those of its parts. The command's flags, the keys of TOML files and the form on
Prefect's page are made of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from roundweave.flows.config.base import Config, NamedOrOwn
from roundweave.storage.errors import CodeError, failing_as, located
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.applies.schedules import with_rounds
from roundweave.tasks.algorithms.maps.optimizers import own_optimizer
from roundweave.tasks.algorithms.options import valid
from roundweave.tasks.algorithms.reduces.matched import Matched
from roundweave.tasks.algorithms.reduces.table import REDUCES
from roundweave.tasks.algorithms.table import (
    ABOUT,
    ALGORITHMS,
    APPLIES,
    MAPS,
    TABLES,
    Auto,
    build_algorithm,
    check_taken,
    is_own_part,
    make_part,
    part_options,
    with_needs,
    with_own_parts,
)
from roundweave.tasks.own_code.code import Code, find_code, is_reference
from roundweave.tasks.own_code.tables import spelled, unknown

Options = Mapping[str, tuple[Any, Any]]
"""The (type, default) of options by name."""

OWN_PART = "own.py:part"
"""Stands for any user's function as a part, which has no options."""

ReduceName = Annotated[
    NamedOrOwn | None, Field(description=f"aggregation of the updates: {', '.join(spelled(REDUCES))}, FILE.py:fn")
]
ApplyName = Annotated[NamedOrOwn | None, Field(description=f"server optimizer: {', '.join(APPLIES)}, FILE.py:fn")]

_with_form = ContextVar("with_form", default=True)


@contextmanager
def without_form() -> Iterator[None]:
    """JSON schemas that are made while the context is open lack the algorithms, which take a tenth of a second."""
    token = _with_form.set(False)
    try:
        yield
    finally:
        _with_form.reset(token)


class AlgorithmForm(BaseModel):
    """An algorithm and the parts in place of its own; None keeps its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Any
    map: NamedOrOwn | None = Field(
        default=None, description=f"local work of a partition: {', '.join(MAPS)}, FILE.py:fn"
    )
    reduce: ReduceName = None
    apply: ApplyName = None


class Named(AlgorithmForm):
    """An algorithm by its name or the user's function, with the options that were given."""

    model_config = ConfigDict(extra="allow")

    name: Code | str

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        """Return a table of name, parts and checked options.

        Raises `UsageError` and `ValueError` for wrong ones.
        """
        if isinstance(value, Named):
            return value
        table = algorithm_table(value)
        name = find_code(table["name"]) if callable(table["name"]) else table["name"]
        if not is_own_algorithm(name):
            return _with_checked_options(table)
        if isinstance(name, str) and not is_reference(name):
            raise ValueError(str(unknown("algorithm", name, [*ABOUT, "FILE.py:function"])))
        return table | {"name": name}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The form of each algorithm with its options."""
        if not _with_form.get():
            return {}
        forms: list[Any] = [
            create_model(
                "".join(part.capitalize() for part in name.split("_")),
                __base__=AlgorithmForm,
                __doc__=about,
                name=(Literal[name], name),
                **_options(name),
            )  # type: ignore[call-overload]
            for name, about in ABOUT.items()
        ]
        own = create_model(
            "OwnAlgorithm", __base__=AlgorithmForm, __cls_kwargs__={"extra": "allow"}, name=(Code | str, ...)
        )
        every: Any = Union[str, *forms, own]
        return handler(TypeAdapter(every).core_schema)

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that replace the algorithm's own, by kind: map, reduce or apply."""
        return {kind: part for kind in TABLES if (part := getattr(self, kind)) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """All options by name, including defaults."""
        defaults = {} if is_own_algorithm(self.name) else _options(str(self.name), _named_parts(self.parts))
        return {name: default for name, (_, default) in defaults.items()} | (self.model_extra or {})

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions in it, each with its source."""
        every = (self.name, *self.parts.values(), *(self.model_extra or {}).values())
        return tuple(each for each in every if isinstance(each, Code))

    @property
    def label(self) -> str:
        """The name to show to people; of a user's function its reference."""
        return self.name.label if isinstance(self.name, Code) else self.name

    def recorded(self, rounds: int) -> Named:
        """A copy for the record of a run of so many rounds: all options, and the source of the user's functions.

        Learning-rate schedules last so many rounds, unless they name a number themselves.
        """
        own: dict[str, Code | str] = {
            kind: find_code(part) for kind, part in self.parts.items() if is_own_part(kind, part)
        }
        name = {"name": find_code(self.name)} if is_own_algorithm(self.name) else {}
        if "optimizer" in self.options and not is_own_algorithm(self.name):
            own["optimizer"] = own_optimizer(self.options["optimizer"])
        schedules = {n: with_rounds(text, rounds) for n, text in self.options.items() if n.endswith("lr_schedule")}
        return self.model_copy(update={**self.options, **schedules, **own, **name})

    def build(self) -> Algorithm:
        """Return the algorithm itself.

        Raises `UsageError` for an option that the user's function does not take.
        """
        return build_algorithm(self.name, self.options, self.parts)


@functools.cache
def _options(name: str, parts: tuple[tuple[str, str], ...] = ()) -> Options:
    """Return the options of a built-in algorithm with other parts. Raises `UsageError` for an unknown part."""
    if name == "auto":
        return part_options(Auto)
    preset = ALGORITHMS[name].with_parts(dict(parts))
    return {name: (option.annotation, option.default) for name, option in preset.options.items()}


def _named_parts(parts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the parts by kind as `_options` takes them."""
    return tuple((kind, OWN_PART if is_own_part(kind, part) else part) for kind, part in parts.items())


def _every_option() -> dict[str, FieldInfo]:
    """Return the options of all algorithms and parts by name.

    The first algorithm that has an option describes it.
    """
    every = {name: field for name, field in AlgorithmForm.model_fields.items() if name != "name"}
    replaced = [
        (kind, part) for kind, (table, _) in TABLES.items() for part, entry in table.items() if not entry.argument
    ]
    for options in (*map(_options, ("fed_avg", *ABOUT)), *(_options("fed_avg", (part,)) for part in replaced)):
        every |= {name: _field(*option) for name, option in options.items() if name not in every}
    return every


def _field(annotation: Any, default: Any) -> FieldInfo:
    return FieldInfo.from_annotated_attribute(annotation, default)


EVERY_OPTION: Mapping[str, FieldInfo] = _every_option()
"""All options of all algorithms by name; an option's default may differ between algorithms."""


def option_fields(name: str | Code) -> dict[str, FieldInfo]:
    """Return the options of an algorithm by name.

    For a user's function its file is run to find the function's parameters. Raises `CodeError` if that fails.
    """
    if not is_own_algorithm(name):
        return {option: _field(*described) for option, described in _options(str(name)).items()}
    if not (isinstance(name, Code) or is_reference(name)):
        return {}
    code = find_code(name)
    function = code.load()
    with failing_as(lambda error: CodeError(f"the options of {code.reference} cannot be read: {located(error)}")):
        hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: _field(hints.get(p.name, _type(p.default)), p.default) for p in parameters}


def _type(default: Any) -> Any:
    """Return the type of an option without an annotation: the type of its default."""
    return Any if default in (None, inspect.Parameter.empty) else type(default)


def is_own_algorithm(name: str | Code) -> bool:
    """Tell whether an algorithm is a user's function and not a built-in name."""
    return not isinstance(name, str) or name not in ABOUT


def algorithm_table(value: Any) -> dict[str, Any]:
    """Return an algorithm as a table of name and options.

    A name, a callable or code becomes one without options.
    """
    if isinstance(value, Named):
        return {"name": value.name, **value.model_dump(exclude={"name"}, exclude_unset=True)}
    # A user's function as a run's record stores it has a name, too, and a source.
    named = isinstance(value, Mapping) and "name" in value and "source" not in value
    return dict(value) if named else {"name": value}


_adapter = functools.cache(TypeAdapter[Any])
"""The validator of a type, which takes a third of a millisecond to make."""


def _with_checked_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a built-in algorithm, its options as values of their types. Raises `UsageError`."""
    name, parts = table["name"], {kind: part for kind in TABLES if (part := table.get(kind)) is not None}
    named, given = _named_parts(parts), {n: v for n, v in table.items() if n not in ("name", *TABLES)}
    options = _options(name, named)
    check_taken(with_own_parts(name, parts), given, options)
    if name != "auto":
        given = ALGORITHMS[name].with_parts(dict(named)).yielding(given)
    checked = {n: valid(n, value, _adapter(options[n][0])) for n, value in given.items()}
    return {"name": name, **parts, **checked}


DEFAULT = Named(name="fed_avg")
"""The algorithm where none is named, and no option implies one."""


class Parts(Config):
    """A reduce and an apply that replace those of an algorithm; None keeps the algorithm's own."""

    reduce: ReduceName = None
    apply: ApplyName = None
    apply_options: dict[str, Any] = Field(
        default={}, description="options of apply, such as lr", examples=[{"lr": 0.5}]
    )

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions among the parts."""
        return tuple(part for part in (self.reduce, self.apply) if isinstance(part, Code))

    def recorded(self) -> dict[str, Any]:
        """Return the given fields, with the source of the user's functions."""
        parts = {kind: part for kind in ("reduce", "apply") if (part := getattr(self, kind)) is not None}
        kept = {kind: find_code(part) if is_own_part(kind, part) else part for kind, part in parts.items()}
        return kept | ({"apply_options": self.apply_options} if "apply" in kept else {})

    @model_validator(mode="after")
    def _options_of_one(self) -> Parts:
        if self.apply_options and self.apply is None:
            raise ValueError("apply_options need apply: the name of the outer optimizer")
        return self


class Recombined(Parts):
    """The parts that replace those of a run's algorithm.

    `before` rounds of another run are counted before this run's own for random numbers, splits and schedules, so
    that this run's rounds are those that would have followed in the other run.
    """

    before: int = Field(default=0, ge=0, description="earlier rounds, of another run, for seeds and schedules")

    def replaced(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm with its parts replaced by these. Raises `UsageError`, `CodeError`."""
        reduce: Any = algorithm.reduce
        if self.reduce is not None:
            other = make_part("reduce", self.reduce, {})
            matched = isinstance(reduce, Matched) and not isinstance(other, Matched)
            reduce = replace(reduce, inner=other) if matched else other  # a matching reduce goes on matching units
        apply = algorithm.apply if self.apply is None else make_part("apply", self.apply, self.apply_options)
        return with_needs(replace(algorithm, reduce=reduce, apply=apply))


def is_part(text: str) -> bool:
    """Tell whether a text names a built-in reduce or apply, with or without an argument after a colon."""
    return text.partition(":")[0] in {**REDUCES, **APPLIES}
