"""The base class of configurations, types of their fields, and one-line messages for wrong values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from roundweave.storage.errors import UsageError, failing_as, nearest, reason
from roundweave.storage.parsing import at_commas, from_json, from_toml
from roundweave.tasks.data.sources.table import is_source
from roundweave.tasks.own_code.code import Code, find_code

PATTERN = "string_pattern_mismatch"
"""Pydantic's word for a text that fails a pattern. Its own message would be a regular expression."""


LISTED = "`roundweave train --help` lists them"
LONGEST = 100
"""The longest code of a value in a message. Longer values are shown as their type."""


class Skipped(Exception):
    """Raised if the configuration says to skip this training. `address` names an existing run."""

    def __init__(self, text: str, address: str) -> None:
        super().__init__(text)
        self.address = address


class Config(BaseModel):
    """A configuration.

    A wrong value raises `UsageError`; for an unknown field the message names the nearest one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    known: ClassVar[Mapping[str, FieldInfo]] = {}
    """Names that may be given besides the fields, for suggestions."""

    brought: ClassVar[dict[str, str]] = {}
    """The options of plugins, and the place of each plugin."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fields = {**self.known, **type(self).model_fields}
            raise UsageError("; ".join(problems_of(error, values, fields))) from None

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """Return the configuration of those recorded values that are its fields."""
        return cls(**{name: value for name, value in recorded.items() if name in cls.model_fields})


def problems_of(error: ValidationError, values: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> list[str]:
    """Return one line for each wrong field. If no type or pattern fits, the line says what the field takes."""
    wrong: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors():
        wrong.setdefault(str(detail["loc"][0]) if detail["loc"] else "", []).append(detail)
    return [
        f"{field} = {_shown(values[field])} expected {fields[field].description}"
        if field in values and field in fields and (len(details) > 1 or details[0]["type"] == PATTERN)
        else "; ".join(dict.fromkeys(_problem(field, detail, fields) for detail in details))
        for field, details in wrong.items()
    ]


def _problem(field: str, detail: ErrorDetails, fields: Iterable[str]) -> str:
    if detail["type"] == "extra_forbidden":
        from roundweave.flows.config.guesses import field_meant  # few fields are unknown

        meant = field_meant(field)
        advice = f"did you mean {meant}?" if meant in {*fields} else nearest(field, fields, LISTED)
        return f"unknown field {field!r}; {advice}"
    message = detail["msg"].removeprefix("Value error, ")
    # Messages of our own checks already name the field.
    return message if not field or detail["type"] == "value_error" else f"{field} = {detail['input']!r}: {message}"


def _shown(value: Any) -> str:
    """Return a value as code and a colon, or advice about a value that is no text or number."""
    shown = repr(value)
    large = len(shown) > LONGEST or " object at 0x" in shown
    return f"a {type(value).__name__}: give a function that returns it;" if large else f"{shown}:"


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that calls a check.

    The check raises an error for a wrong value; the value stays as it is.
    """

    def unchanged(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(unchanged)


def _keep_callable(value: Any) -> Any:
    return find_code(value) if callable(value) else value


def as_number(given: Any) -> Any:
    """Return a whole number if a text is one, so that 1 is one partition and 1.0 all partitions."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def read_values(given: Any, info: ValidationInfo) -> Any:
    """Return the values in a named JSON or TOML file; any other value unchanged. Raises `UsageError`."""
    if not (isinstance(given, str) and given.endswith((".json", ".toml"))):
        return given
    with failing_as(lambda error: UsageError(f"{info.field_name} {given} cannot be read: {reason(error)}")):
        text = Path(given).read_text(encoding="utf-8")
        return from_toml(text) if given.endswith(".toml") else from_json(text)


@dataclass(frozen=True)
class Own:
    """Marks an option that may hold the user's code: a text names code unless it `is_built_in`.

    An option of `many` also takes several texts separated by commas.

    In a TOML file, paths of code are relative to the file's folder. Code of a store from elsewhere runs only if
    the user trusts the store. For an option that names `data`, the run records the digest of the examples under
    the option's name, and resumes only with the same examples.
    """

    is_built_in: Callable[[str], object] = lambda text: False
    data: bool = False
    many: bool = False


def own_options(kind: type[BaseModel], data: bool = False) -> dict[str, Own]:
    """Return the marks of options that may hold the user's code, or only of those that name data."""
    found = ((n, next(_marks(field.annotation, field.metadata), None)) for n, field in kind.model_fields.items())
    return {name: mark for name, mark in found if mark and (mark.data or not data)}


def _marks(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[Own]:
    """Return the marks in an annotation, the outermost first."""
    yield from (each for each in reversed(metadata) if isinstance(each, Own))
    for part in get_args(annotation):
        yield from _marks(part, getattr(part, "__metadata__", ()))


NamedOrOwn = Annotated[str | Code, BeforeValidator(_keep_callable, json_schema_input_type=str | Code), Own()]
"""A built-in name, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""

EachOwn = tuple[NamedOrOwn, ...]
"""A tuple with one built-in name or function for each partition."""

DATA = Own(is_source, data=True)
"""The mark of an option that names data."""

Names = Annotated[tuple[NamedOrOwn, ...], BeforeValidator(at_commas), Own(many=True)]
"""Built-in names or users' functions, or a text of names separated by commas."""

PartitionsGiven = Annotated[tuple[int | str, ...], BeforeValidator(at_commas)]
"""Partitions by number or name, or a text of them separated by commas."""

Numbers = Annotated[tuple[float, ...], BeforeValidator(at_commas)]
"""Numbers, or a text of numbers separated by commas."""
