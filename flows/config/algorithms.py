"""The algorithm of a configuration: its name, its parts and their options.

Each algorithm has a pydantic model, made from the options of its parts. From these models come the command's
flags, the keys of TOML files and the form on Prefect's page. A value that is no field of a configuration counts as
an option of its algorithm: ``lr = 0.1`` beside ``algorithm = "fed_avg"`` means
``algorithm = {name = "fed_avg", lr = 0.1}``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, create_model
from pydantic.fields import FieldInfo

from flows.config.base import NamedOrOwn, problems_of
from storage.errors import CodeError, failing_as, located
from tasks.algebra import Algorithm
from tasks.algorithms.preset import APPLIES, MAPS, TABLES, is_own_part, part_options
from tasks.algorithms.table import ABOUT, ALGORITHMS, Auto, build_algorithm, check_taken
from tasks.applies.schedules import with_rounds
from tasks.reduces.table import REDUCES
from tasks.tables import spelled, unknown
from tasks.user_code import Code, find_code, is_reference

Options = Mapping[str, tuple[Any, Any]]
"""The (type, default) of options by name."""


class Named(BaseModel):
    """An algorithm with its options; `map`, `reduce` and `apply` may replace the algorithm's own parts."""

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
        """The parts that replace the algorithm's own, by kind: map, reduce or apply."""
        return {kind: part for kind in TABLES if (part := getattr(self, kind)) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """All options by name, including defaults."""
        return {name: getattr(self, name) for name in self.model_dump(exclude={"name", *TABLES})}

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's functions in it, each with its source."""
        return tuple(each for each in (self.name, *self.parts.values()) if isinstance(each, Code))

    @property
    def label(self) -> str:
        """The name to show to people; of a user's function its reference."""
        return self.name.label if isinstance(self.name, Code) else str(self.name)

    def kept(self) -> Named:
        """A copy in which references to the user's functions are replaced by their source."""
        own = {kind: find_code(part) for kind, part in self.parts.items() if is_own_part(kind, part)}
        name = {"name": find_code(self.name)} if is_own(self.name) else {}
        return self.model_copy(update={**own, **name})

    def over(self, rounds: int) -> Named:
        """A copy whose learning-rate schedules last so many rounds, unless they name a number themselves."""
        texts = {name: value for name, value in self.options.items() if name.endswith("lr_schedule")}
        return self.model_copy(update={name: with_rounds(text, rounds) for name, text in texts.items()})

    def build(self) -> Algorithm:
        """The algorithm itself; raises `UsageError` for an option that the user's function does not take."""
        return build_algorithm(self.name, self.options, self.parts)


class OwnAlgorithm(Named):
    """A user's function that returns an `Algorithm`; its parameters are the options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Code | str


def _model(name: str, options: Options) -> type[Named]:
    """Make the pydantic model of an algorithm with these options."""
    title = "".join(part.capitalize() for part in name.split("_"))
    fields: dict[str, Any] = {"name": (Literal[name], name), **options}
    return create_model(title, __base__=Named, __doc__=ABOUT.get(name), **fields)


@functools.cache
def _model_of(name: str, parts: tuple[tuple[str, Any], ...] = ()) -> type[Named]:
    """The model of a built-in algorithm with other parts; raises `UsageError` for an unknown part."""
    return _model(name, _options(name, parts))


@functools.cache
def _options(name: str, parts: tuple[tuple[str, Any], ...] = ()) -> Options:
    """The options of a built-in algorithm with other parts; raises `UsageError` for an unknown part."""
    if name == "auto":
        return part_options(Auto)
    preset = ALGORITHMS[name].with_parts(dict(parts))
    return {name: (option.annotation, option.default) for name, option in preset.options.items()}


MODELS: Mapping[str, type[Named]] = {name: _model_of(name) for name in ABOUT}


def _every_option() -> dict[str, FieldInfo]:
    """The options of all algorithms and parts by name; the first algorithm that has an option describes it."""
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
"""All options of all algorithms by name; an option's default may differ between algorithms."""


def leave_checks(schema: dict[str, Any]) -> None:
    """Make a JSON schema allow unknown fields, which our own check refuses with a clearer message."""
    schema["additionalProperties"] = True


def options_of(name: str, parts: Mapping[str, str] | None = None) -> dict[str, FieldInfo]:
    """The options of an algorithm by name.

    For a user's function its file is run to find the function's parameters; raises `CodeError` if that fails.
    """
    if is_own(name):
        if not is_reference(name):
            return {}
        function = find_code(name).load()
        with failing_as(lambda error: CodeError(f"the options of {name} cannot be read: {located(error)}")):
            hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        options: Options = {p.name: (hints.get(p.name, _type(p.default)), p.default) for p in parameters}
    else:
        options = _options(name, tuple((parts or {}).items()))
    return {n: field for n, field in _model("own", options).model_fields.items() if n in options}


def _type(default: Any) -> Any:
    """The type of an option without an annotation: the type of its default."""
    return Any if default in (None, inspect.Parameter.empty) else type(default)


DEFAULT = MODELS["fed_avg"](name="fed_avg")


def is_own(name: str | Code) -> bool:
    """Whether an algorithm is a user's function and not a built-in name."""
    return not isinstance(name, str) or name not in MODELS


def fold_options(values: Mapping[str, Any], fields: Set[str]) -> dict[str, Any]:
    """Move values that are no `fields` into the algorithm's table, where they replace options of the same name.

    Values that no algorithm takes stay where they are, unless the algorithm is a user's function, which may take
    any option.
    """
    table = _table(values.get("algorithm", DEFAULT))
    own = is_own(table["name"])
    moved = {n: v for n, v in values.items() if n not in fields and (n in EVERY_OPTION or own)}
    rest = {name: value for name, value in values.items() if name not in moved}
    return rest | {"algorithm": table | moved} if moved else rest


def _table(value: Any) -> dict[str, Any]:
    """An algorithm as a table of name and options; a name, a callable or code becomes one without options."""
    if isinstance(value, Named):
        return {"name": value.name, **value.model_dump(exclude={"name"}, exclude_unset=True)}
    named = isinstance(value, Mapping) and "name" in value and not _is_kept(value)
    return dict(value) if named else {"name": value}


def _checked(value: Any) -> Any:
    """The algorithm of a table, a name or a callable; raises `ValueError` for unknown names and options."""
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
    """The built-in algorithm of this name with the options and parts of a table; raises `ValueError`."""
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
"""Stands for any user's function as a part, which has no options."""


def _is_kept(value: Any) -> bool:
    """Whether a value is a user's function as a run's record stores it; such a value also has a name."""
    return isinstance(value, Mapping) and "source" in value


if TYPE_CHECKING:
    AlgorithmField = Any  # a type checker cannot express that other types are accepted than the field holds
else:
    _Table = Union[str, *MODELS.values(), OwnAlgorithm]
    AlgorithmField = Annotated[SerializeAsAny[Named], BeforeValidator(_checked, json_schema_input_type=_Table)]
"""A name, a table of a name and options, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""
