"""The algorithm of a configuration: its name, and its options, which the signature of its function defines.

From each signature of the table comes a model, and from the models the command's flags, the TOML's keys and the
form on Prefect's page. What is no field of a configuration is an option of its algorithm: ``lr = 0.1`` beside
``algorithm = "fed_avg"`` is ``algorithm = {name = "fed_avg", lr = 0.1}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, create_model
from pydantic.fields import FieldInfo

from tasks.algebra import Algorithm
from tasks.algorithms.table import NAMED, build_algorithm, check_taken
from tasks.applies.schedules import with_rounds
from tasks.tables import unknown
from tasks.user_code import Code, find_code, is_reference

OWN = "own"
"""The tag of an algorithm that is a function of the user's."""


class Named(BaseModel):
    """An algorithm with its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Any

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, defaults included."""
        return {name: getattr(self, name) for name in self.model_dump(exclude={"name"})}

    @property
    def code(self) -> tuple[Code, ...]:
        """The user's function, kept by value, where it is one."""
        return (self.name,) if isinstance(self.name, Code) else ()

    @property
    def label(self) -> str:
        """A name for people."""
        return self.name.label if isinstance(self.name, Code) else str(self.name)

    def kept(self) -> Named:
        """The same, a function of the user's kept by value."""
        return self.model_copy(update={"name": find_code(self.name)}) if is_own(self.name) else self

    def over(self, rounds: int) -> Named:
        """The same, with learning-rate schedules that name no number of rounds going over so many."""
        texts = {name: value for name, value in self.options.items() if name.endswith("lr_schedule")}
        return self.model_copy(update={name: with_rounds(text, rounds) for name, text in texts.items()})

    def build(self) -> Algorithm:
        """The three values; raises `UsageError` for an option that the user's function does not take."""
        return build_algorithm(self.name, self.options)


class OwnAlgorithm(Named):
    """A function of the user's that returns an `Algorithm`, with the options that it names."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Code | str


def _model(name: str, function: Callable[..., Any]) -> type[Named]:
    """The model of a function's options."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    fields: dict[str, Any] = {p.name: (hints.get(p.name, _type(p.default)), p.default) for p in parameters}
    title = "".join(part.capitalize() for part in name.split("_"))
    return create_model(
        title, __base__=Named, __doc__=inspect.getdoc(function), **{"name": (Literal[name], name), **fields}
    )


def _type(default: Any) -> Any:
    """The type of an option that is not annotated: that of its default."""
    return Any if default in (None, inspect.Parameter.empty) else type(default)


MODELS: Mapping[str, type[Named]] = {name: _model(name, function) for name, function in NAMED.items()}


EVERY_OPTION: Mapping[str, FieldInfo] = {
    name: field for model in MODELS.values() for name, field in model.model_fields.items() if name != "name"
}
"""All that some algorithm takes, by name; defaults may differ from one to another."""


def leave_checks(schema: dict[str, Any]) -> None:
    """Have a JSON schema leave to us what we refuse in better words: options that no algorithm takes.

    A table fits an algorithm of the user's as well as the one that it names, so it is one of any.
    """
    schema["additionalProperties"] = True
    table = schema["properties"]["algorithm"]["anyOf"][1]
    table["anyOf"] = table.pop("oneOf")


def options_of(name: str) -> dict[str, FieldInfo]:
    """The options of an algorithm by name; of the user's function it runs the file, and raises `CodeError`."""
    model = _model("own", find_code(name).load()) if is_own(name) and is_reference(name) else MODELS.get(name)
    return {} if model is None else {n: field for n, field in model.model_fields.items() if n != "name"}


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


def _tag(value: Any) -> str:
    name = value.name if isinstance(value, Named) else value["name"]
    return OWN if is_own(name) else str(name)


def _table(value: Any) -> dict[str, Any]:
    """A table of name and options; a name, a callable or kept code alone has no options."""
    if isinstance(value, Named):
        return {"name": value.name, **value.model_dump(exclude={"name"}, exclude_unset=True)}
    named = isinstance(value, Mapping) and "name" in value and not _is_kept(value)
    return dict(value) if named else {"name": value}


def _checked_table(value: Any) -> Any:
    """The table of a known algorithm, with options that it takes; else `ValueError`."""
    if isinstance(value, Named):
        return value
    table = _table(value)
    name = find_code(table["name"]) if callable(table["name"]) else table["name"]
    if not is_own(name):
        check_taken(str(name), set(table) - {"name"}, options_of(str(name)))
    elif isinstance(name, str) and not is_reference(name):
        raise ValueError(str(unknown("algorithm", name, [*MODELS, "FILE.py:function"])))
    return table | {"name": name}


def _is_kept(value: Any) -> bool:
    """Whether it is a function of the user's as a record holds it, which has a name, too."""
    return isinstance(value, Mapping) and "source" in value


if TYPE_CHECKING:
    AlgorithmField = Any  # a checker knows what a field holds, and not what may be given for it
else:
    _TAGGED = [Annotated[model, Tag(name)] for name, model in {**MODELS, OWN: OwnAlgorithm}.items()]
    _Table = Annotated[Union[*_TAGGED], Discriminator(_tag)]
    AlgorithmField = Annotated[_Table, BeforeValidator(_checked_table, json_schema_input_type=str | _Table)]
"""A name, a table of a name and options, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""
