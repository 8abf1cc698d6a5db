"""The command's options, made from the fields of the configuration: one definition for both."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from storage.errors import UsageError
from tasks.user_code import Code


def with_options(*models: type[BaseModel], without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Give a command, whose last parameter is ``**options``, an option for each field of the models."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
        added = [
            _parameter(name, field, model.__name__)
            for model in models
            for name, field in model.model_fields.items()
            if name not in without
        ]
        everything = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *added]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in everything}
        return command

    return decorate


def _parameter(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    kind = _option_type(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    default = field.get_default(call_default_factory=True)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=f"{field.description}" + ("" if default in (None, {}, False) else f" ({default})"),
        show_default=False,
        rich_help_panel=panel,
        metavar="JSON" if _is_mapping(field.annotation) else None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _members(annotation: Any) -> list[Any]:
    """The types of a union without None and the user's own code; else the type alone."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if isinstance(annotation, types.UnionType) or str(get_origin(annotation)) == "typing.Union":
        return [m for part in get_args(annotation) for m in _members(part) if m not in (type(None), Code)]
    return [annotation]


def _is_mapping(annotation: Any) -> bool:
    return any(get_origin(member) is dict for member in _members(annotation))


def _option_type(annotation: Any) -> Any:
    member = _members(annotation)[0]
    return str if get_origin(member) in (dict, tuple) else member


def given(options: dict[str, Any], *models: type[BaseModel]) -> dict[str, Any]:
    """The options that were given, with those of mapping type read as JSON."""
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    values = {name: value for name, value in options.items() if value is not None}
    for name, value in values.items():
        if _is_mapping(fields[name].annotation):
            try:
                values[name] = json.loads(value)
            except ValueError as error:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} must be a JSON object such as '{{\"hidden\": 256}}': {error}") from error
    return values
