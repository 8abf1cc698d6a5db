"""The command's options, made from the fields of the configurations and the signatures of the algorithms."""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flows.config.algorithms import EVERY_OPTION, Named, options_of
from storage.errors import RoundweaveError, UsageError
from storage.parsing import from_json
from tasks.user_code import Code


def with_options(*models: type[BaseModel], without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A decorator that gives a command an option for each field of the models, except those in `without`.

    The command takes the options' values as ``**options``.
    """
    added = {
        name: _parameter(name, field, model.model_config.get("title") or model.__name__)
        for model in models
        for name, field in model.model_fields.items()
        if name not in without
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
        return _signed(command, [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *added.values()])

    return decorate


def with_algorithms(command: Callable[..., Any], arguments: list[str]) -> Callable[..., Any]:
    """Give a command the options of all algorithms; its help shows those of the algorithm in the arguments."""
    known = inspect.signature(command).parameters
    return _signed(
        command, [*known.values(), *(p for p in _algorithm_parameters(arguments) if p.name not in known)]
    )


def _signed(command: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    @functools.wraps(command)
    def signed(**values: Any) -> Any:
        return command(**values)

    signed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    signed.__annotations__ = {p.name: p.annotation for p in parameters}
    return signed


def _algorithm_parameters(arguments: list[str]) -> list[inspect.Parameter]:
    """The options of all algorithms; those that the algorithm in the arguments does not take are hidden."""
    asked = _asked_algorithm(arguments)
    try:
        shown: Mapping[str, FieldInfo] = options_of(asked) if asked else {}
    except RoundweaveError:  # it is raised again and reported when the configuration is resolved
        shown = {}
    panel = f"Options of {asked}"
    return [
        _parameter(name, field, panel, hidden=name not in shown)
        for name, field in {**EVERY_OPTION, **shown}.items()
    ]


def _asked_algorithm(arguments: list[str]) -> str | None:
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == "--algorithm":
            return following
        if argument.startswith("--algorithm="):
            return argument.partition("=")[2]
    return None


def _parameter(name: str, field: FieldInfo, panel: str, hidden: bool = False) -> inspect.Parameter:
    kind = _option_type(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    # A switch that is off by default needs no --no- flag; an algorithm's option may be on by default.
    switch = f"{flag}/--no-{flag[2:]}" if hidden or field.default is not False else flag
    option = typer.Option(
        switch if kind is bool else flag,
        help=_help(field),
        show_default=False,
        rich_help_panel=panel,
        metavar="JSON" if _is_mapping(field.annotation) else "NAME" if get_origin(kind) is Literal else None,
        hidden=hidden,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _help(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    default = default.label if isinstance(default, Named) else default
    kind = _option_type(field.annotation)
    choices = f": {', '.join(get_args(kind))}" if get_origin(kind) is Literal else ""
    shown_default = "" if default is False or default in (None, {}, ()) else f" ({default})"
    return f"{field.description or ''}{choices}{shown_default}".strip(": ")


def _members(annotation: Any) -> list[Any]:
    """The types of a union except None and `Code`; any other type alone."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if isinstance(annotation, types.UnionType) or str(get_origin(annotation)) == "typing.Union":
        return [m for part in get_args(annotation) for m in _members(part) if m not in (type(None), Code)]
    return [annotation]


def _is_mapping(annotation: Any) -> bool:
    return any(get_origin(member) in (dict, Mapping) for member in _members(annotation))


def _option_type(annotation: Any) -> Any:
    """The type of a flag's value: a plain type or a choice stays as it is, every other type becomes text."""
    member, *others = _members(annotation)
    if any(get_origin(other) is Literal for other in others):  # a number, or a word in its place
        return str
    return member if member in (bool, int, float, Path) or get_origin(member) is Literal else str


def given(options: Mapping[str, Any], *models: type[BaseModel]) -> dict[str, Any]:
    """The options that the user gave; values of fields that are mappings are parsed as JSON."""
    fields = {**EVERY_OPTION, **{name: field for model in models for name, field in model.model_fields.items()}}
    mappings = {name for name, field in fields.items() if _is_mapping(field.annotation)}
    values = {name: value for name, value in options.items() if value is not None}
    return {
        name: _json(name, value, fields[name].examples) if name in mappings else value
        for name, value in values.items()
    }


def _json(name: str, value: str, examples: Sequence[Any] | None) -> Any:
    try:
        return from_json(value)
    except ValueError as error:
        such = "".join(f" such as '{json.dumps(example)}'" for example in examples or ())
        raise UsageError(f"--{name.replace('_', '-')} must be a JSON object{such}: {error}") from error
