"""The base of configurations, and types of fields; what is wrong is said in one line, in words for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from storage.errors import UsageError, nearest
from storage.parsing import at_commas
from tasks.user_code import Code, find_code

NAMES = "only letters, digits, '.', '_' and '-', the first a letter, digit or '_'"


class Config(BaseModel):
    """A configuration; raises `UsageError` for what cannot be, which names the nearest of an unknown field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    known: ClassVar[Mapping[str, FieldInfo]] = {}
    """What may be given besides its fields."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fields = {**self.known, **type(self).model_fields}
            raise UsageError("; ".join(problems_of(error, values, fields))) from None


def problems_of(error: ValidationError, values: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> list[str]:
    """A line a field; one that takes several forms, and got none of them, says what it takes."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors():
        lines.setdefault(_field(detail), []).append(_problem(detail, fields))
    return [
        f"{field} = {values[field]!r}: it takes {fields[field].description}"
        if len(told) > 1 and field in values and field in fields
        else "; ".join(dict.fromkeys(told))
        for field, told in lines.items()
    ]


def _field(detail: ErrorDetails) -> str:
    return str(detail["loc"][0]) if detail["loc"] else ""


def _problem(detail: ErrorDetails, fields: Iterable[str]) -> str:
    field = _field(detail)
    if detail["type"] == "extra_forbidden":
        return f"unknown field {field!r}; {nearest(field, fields, '`roundweave train --help` lists them')}"
    message = NAMES if detail["type"] == "string_pattern_mismatch" else detail["msg"]
    message = message.removeprefix("Value error, ")
    # What our own checks say names the field already.
    return message if not field or detail["type"] == "value_error" else f"{field} = {detail['input']!r}: {message}"


def _keep_callable(value: Any) -> Any:
    return find_code(value) if callable(value) else value


if TYPE_CHECKING:
    NamedOrOwn = Any  # a checker knows what a field holds, and not what may be given for it
else:
    NamedOrOwn = Annotated[str | Code, BeforeValidator(_keep_callable, json_schema_input_type=str | Code)]
"""A built-in name, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""


if TYPE_CHECKING:
    EachOwn = Any
else:
    EachOwn = tuple[NamedOrOwn, ...]
"""One for each partition."""


if TYPE_CHECKING:
    Names = Any
else:
    Names = Annotated[tuple[NamedOrOwn, ...], BeforeValidator(at_commas)]
"""Built-in names or functions of the user's, or a text of names with commas between them."""

Integers = Annotated[tuple[int, ...], BeforeValidator(at_commas)]
"""Whole numbers, or a text with commas between them."""

Numbers = Annotated[tuple[float, ...], BeforeValidator(at_commas)]
"""Numbers, or a text with commas between them."""
