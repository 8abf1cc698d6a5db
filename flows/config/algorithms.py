"""The algorithm of a configuration: its name, its parts and their options.

From the parts of each algorithm comes a model, and from the models the command's flags, the TOML's keys and the
form on Prefect's page. What is no field of a configuration is an option of its algorithm: ``lr = 0.1`` beside
``algorithm = "fed_avg"`` is ``algorithm = {name = "fed_avg", lr = 0.1}``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, create_model
from pydantic.fields import FieldInfo

from flows.config.base import NamedOrOwn, problems_of
from tasks.algebra import Algorithm
from tasks.algorithms.preset import TABLES, is_own_part, part_options
from tasks.algorithms.table import ABOUT, ALGORITHMS, Auto, build_algorithm, check_taken
from tasks.applies.schedules import with_rounds
from tasks.applies.table import APPLIES
from tasks.maps.table import MAPS
from tasks.reduces.table import REDUCES
from tasks.tables import spelled, unknown
from tasks.user_code import Code, find_code, is_reference

Options = Mapping[str, tuple[Any, Any]]
"""The (type, default) of options by name."""


class Named(BaseModel):
    """An algorithm with its options, and parts in place of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Any
    map: NamedOrOwn | None = Field(
        default=None, description=f"the map in place of the algorithm's: {', '.join(MAPS)}, FILE.py:fn"
    )
    reduce: NamedOrOwn | None = Field(
        default=None, description=f"how updates become one: {', '.join(spelled(REDUCES))}, FILE.py:fn"
    )
    apply: NamedOrOwn | None = Field(
        default=None, description=f"the outer optimizer: {', '.join(APPLIES)}, FILE.py:fn"
    )

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that are in place of the algorithm's own, by kind."""
        return {kind: part for kind in TABLES if (part := getattr(self, kind)) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, defaults included."""
        return {name: getattr(self, name) for name in self.model_dump(exclude={"name", *TABLES})}

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions, kept by value."""
        return tuple(each for each in (self.name, *self.parts.values()) if isinstance(each, Code))

    @property
    def label(self) -> str:
        """A name for people."""
        return self.name.label if isinstance(self.name, Code) else str(self.name)

    def kept(self) -> Named:
        """The same, functions of the user's kept by value."""
        own = {kind: find_code(part) for kind, part in self.parts.items() if is_own_part(kind, part)}
        name = {"name": find_code(self.name)} if is_own(self.name) else {}
        return self.model_copy(update={**own, **name})

    def over(self, rounds: int) -> Named:
        """The same, with learning-rate schedules that name no number of rounds going over so many."""
        texts = {name: value for name, value in self.options.items() if name.endswith("lr_schedule")}
        return self.model_copy(update={name: with_rounds(text, rounds) for name, text in texts.items()})

    def build(self) -> Algorithm:
        """The three values; raises `UsageError` for an option that the user's function does not take."""
        return build_algorithm(self.name, self.options, self.parts)


class OwnAlgorithm(Named):
    """A function of the user's that returns an `Algorithm`, with the options that it names."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Code | str


def _model(name: str, options: Options) -> type[Named]:
    """The model of an algorithm's options."""
    title = "".join(part.capitalize() for part in name.split("_"))
    fields: dict[str, Any] = {"name": (Literal[name], name), **options}
    return create_model(title, __base__=Named, __doc__=ABOUT.get(name), **fields)


@functools.cache
def _model_of(name: str, parts: tuple[tuple[str, Any], ...] = ()) -> type[Named]:
    """The model of a named algorithm with other parts; raises `UsageError` for a part that there is not."""
    return _model(name, _options(name, parts))


@functools.cache
def _options(name: str, parts: tuple[tuple[str, Any], ...] = ()) -> Options:
    """The options of a named algorithm with other parts; raises `UsageError` for a part that there is not."""
    if name == "auto":
        return part_options(Auto)
    preset = ALGORITHMS[name].with_parts(dict(parts))
    return {name: (option.annotation, option.default) for name, option in preset.options.items()}


MODELS: Mapping[str, type[Named]] = {name: _model_of(name) for name in ABOUT}


def _every_option() -> dict[str, FieldInfo]:
    """The options of all algorithms and of all parts by name, as the first that has one says it."""
    models = [MODELS["fed_avg"], *MODELS.values()]
    models += [
        _model_of("fed_avg", ((kind, part),))
        for kind, (table, _) in TABLES.items()
        for part, entry in table.items()
        if not entry.argument
    ]
    every: dict[str, FieldInfo] = {}
    for model in models:
        for name, field in model.model_fields.items():
            every.setdefault(name, field)
    del every["name"]
    return every


EVERY_OPTION: Mapping[str, FieldInfo] = _every_option()
"""All that some algorithm takes, by name; defaults may differ from one to another."""


def leave_checks(schema: dict[str, Any]) -> None:
    """Have a JSON schema leave to us what we refuse in better words: options that no algorithm takes."""
    schema["additionalProperties"] = True


def options_of(name: str, parts: Mapping[str, str] | None = None) -> dict[str, FieldInfo]:
    """The options of an algorithm by name; of the user's function it runs the file, and raises `CodeError`."""
    if is_own(name):
        if not is_reference(name):
            return {}
        function = find_code(name).load()
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        options: Options = {p.name: (hints.get(p.name, _type(p.default)), p.default) for p in parameters}
    else:
        options = _options(name, tuple((parts or {}).items()))
    return {n: field for n, field in _model("own", options).model_fields.items() if n in options}


def _type(default: Any) -> Any:
    """The type of an option that is not annotated: that of its default."""
    return Any if default in (None, inspect.Parameter.empty) else type(default)


DEFAULT = MODELS["fed_avg"](name="fed_avg")


def is_own(name: str | Code) -> bool:
    """Whether an algorithm is a function of the user's."""
    return not isinstance(name, str) or name not in MODELS


def fold_options(values: Mapping[str, Any], fields: Set[str]) -> dict[str, Any]:
    """The values with those that are no fields moved into the table of the algorithm, over what it has of them.

    What no algorithm takes is left where it is; a function of the user's may take anything.
    """
    table = _table(values.get("algorithm", DEFAULT))
    own = is_own(table["name"])
    moved = {n: v for n, v in values.items() if n not in fields and (n in EVERY_OPTION or own)}
    rest = {name: value for name, value in values.items() if name not in moved}
    return rest | {"algorithm": table | moved} if moved else rest


def _table(value: Any) -> dict[str, Any]:
    """A table of name and options; a name, a callable or kept code alone has no options."""
    if isinstance(value, Named):
        return {"name": value.name, **value.model_dump(exclude={"name"}, exclude_unset=True)}
    named = isinstance(value, Mapping) and "name" in value and not _is_kept(value)
    return dict(value) if named else {"name": value}


def _checked(value: Any) -> Any:
    """The algorithm of a table, with options that it takes; else `ValueError`."""
    if isinstance(value, Named):
        return value
    table = _table(value)
    name = find_code(table["name"]) if callable(table["name"]) else table["name"]
    if not is_own(name):
        return _named(str(name), table)
    if isinstance(name, str) and not is_reference(name):
        raise ValueError(str(unknown("algorithm", name, [*MODELS, "FILE.py:function"])))
    return OwnAlgorithm(**table | {"name": name})


def _named(name: str, table: Mapping[str, Any]) -> Named:
    """The algorithm of a name and a table of its options and parts."""
    parts = {kind: part for kind in TABLES if (part := table.get(kind)) is not None}
    replaced = tuple((kind, OWN if is_own_part(kind, part) else part) for kind, part in parts.items())
    options, model = _options(name, replaced), _model_of(name, replaced)
    given = {option: value for option, value in table.items() if option not in ("name", *TABLES)}
    check_taken(name, given, options)
    if name != "auto":
        given = ALGORITHMS[name].with_parts(dict(replaced)).yielding(given)
    try:
        return model(name=name, **parts, **given)
    except ValidationError as error:
        raise ValueError("; ".join(problems_of(error, table, model.model_fields))) from error


OWN = "own.py:part"
"""Stands for a part of the user's, which has no options."""


def _is_kept(value: Any) -> bool:
    """Whether it is a function of the user's as a record holds it, which has a name, too."""
    return isinstance(value, Mapping) and "source" in value


if TYPE_CHECKING:
    AlgorithmField = Any  # a checker knows what a field holds, and not what may be given for it
else:
    _Table = Union[str, *MODELS.values(), OwnAlgorithm]
    AlgorithmField = Annotated[SerializeAsAny[Named], BeforeValidator(_checked, json_schema_input_type=_Table)]
"""A name, a table of a name and options, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""
