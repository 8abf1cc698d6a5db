"""The command's options, made from the fields of the configurations and from the options of the algorithms."""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from roundweave.flows.config.algorithms import EVERY_OPTION, Named, algorithm_table, option_fields
from roundweave.flows.config.files import read_toml
from roundweave.flows.terminal.common import LIST
from roundweave.storage.errors import RoundweaveError, UsageError
from roundweave.storage.parsing import from_json
from roundweave.tasks.algorithms.table import ALGORITHMS, TABLES
from roundweave.tasks.data.sources.table import SOURCES
from roundweave.tasks.data.splits.deals import SPLITS
from roundweave.tasks.networks.reference import MODELS
from roundweave.tasks.networks.scores import LOSS_NAMES
from roundweave.tasks.own_code.code import Code

NAMES: Mapping[str, Iterable[str]] = {
    **{kind: names for kind, (names, _) in TABLES.items()},
    **{"algorithm": ALGORITHMS, "data": SOURCES, "split": SPLITS, "model": MODELS, "loss": LOSS_NAMES},
}
"""The names that values of options may have, for shells that complete them."""

PANELS = {
    "MergeConfig": "Output",
    "RecipeConfig": "Average",
    "Merging": "Matching and repair",
    "DataConfig": "Data",
}
PANELS |= {"Dealing": "Data", "Architecture": "Network", "Experiment": "Network and training"}
PANELS |= {"Execution": "Rounds and results", "Location": "Run and cluster"}
"""The groups of options in the help, by the class that defines them; other options have no group."""


def with_options(*models: type[BaseModel], without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Return a decorator that gives a command an option for each field of the models, except those in `without`.

    The command takes as ``**options`` the values of those that the user gave. A field may name in ``flags`` the
    subcommands that take it.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        added = {
            name: _parameter(name, field, _panel(model, name))
            for model in models
            for name, field in model.model_fields.items()
            if name not in without and _is_taken(field, command.__name__.removesuffix("_command"))
        }
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own = {p.name: p.replace(kind=p.KEYWORD_ONLY) for p in parameters if p.kind != p.VAR_KEYWORD}
        return _signed(command, own | added)

    return decorate


def _panel(model: type[BaseModel], name: str) -> str | None:
    """The group of a field, by the first class that has the field."""
    homes = [each.__name__ for each in model.__mro__ if name in getattr(each, "model_fields", ())]
    return PANELS.get(homes[-1])


def _is_taken(field: FieldInfo, command: str) -> bool:
    """Tell whether a subcommand takes a field as an option."""
    extra = field.json_schema_extra
    flags: Any = extra.get("flags") if isinstance(extra, dict) else None
    return flags is None or command in flags


def with_algorithms(command: Callable[..., Any], arguments: list[str]) -> Callable[..., Any]:
    """Give a command the options of all algorithms; its help shows those of the algorithm that it is to train.

    Raises `UsageError` if that is a user's function with a parameter that the command has as an option already.
    """
    known = dict(inspect.signature(command).parameters)
    try:
        asked = _algorithm([word for argument in arguments for word in argument.split("=", 1)])
        shown: Mapping[str, FieldInfo] = option_fields(asked) if asked else {}
    except RoundweaveError:  # it is raised again and reported when the configuration is resolved
        asked, shown = None, {}
    label = asked.reference if isinstance(asked, Code) else asked
    if taken := shown.keys() & known.keys():
        raise UsageError(f"{label} takes {', '.join(sorted(taken))}, as the command does; give it another name")
    options = {
        name: _parameter(name, field, f"Options of {label or 'algorithms'}", hidden=name not in {*shown, *TABLES})
        for name, field in {**EVERY_OPTION, **shown}.items()
    }
    return _signed(command, known | options)


def _algorithm(words: Sequence[str]) -> str | Code | None:
    """Return the algorithm that a command line names: itself, in its TOML file, or by the run that it forks."""
    values = dict(pairwise(words))
    if "--algorithm" in values:
        return values["--algorithm"]
    for file in (Path(word) for word in words if word.endswith(".toml")):
        if file.is_file() and (given := read_toml(file).get("algorithm")):
            name: str | Code = algorithm_table(given)["name"]
            return name
    if "--from" in values:
        from roundweave.flows.forking import fork  # few commands fork

        return fork(values["--from"], values.get("--root"), "--trust" in words).algorithm.name
    return None


def _signed(command: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> Callable[..., Any]:
    """Return the command with these parameters; it gets the values that were given, and else its own defaults."""

    @functools.wraps(command)
    def signed(**values: Any) -> Any:
        return command(**{name: value for name, value in values.items() if value is not None})

    signed.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    signed.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return signed


def _parameter(name: str, field: FieldInfo, panel: str | None, hidden: bool = False) -> inspect.Parameter:
    kind = _option_type(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    # A switch that is off by default needs no --no- flag; an algorithm's option may be on by default.
    switch = f"{flag}/--no-{flag[2:]}" if hidden or field.default is not False else flag
    option = typer.Option(
        switch if kind is bool else flag,
        help=_help(field, kind),
        show_default=False,
        autocompletion=_completing(NAMES[name]) if name in NAMES else None,
        rich_help_panel=panel,
        parser=functools.partial(_from_json, field.examples or ()) if kind is dict else None,
        metavar=LIST
        if _is_list(field.annotation)
        else {dict: "JSON", Literal: "NAME"}.get(get_origin(kind) or kind),
        hidden=hidden,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Gives a shell those of the names that begin as a value does; typer takes no partial function."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _help(field: FieldInfo, kind: Any) -> str:
    """The description, the choices that it does not explain as ``skip (…)``, and the default."""
    default = field.get_default(call_default_factory=True)
    about, described, shown = (field.description or "").partition("; default: ")
    if get_origin(kind) is Literal and not all(f"{each} (" in about for each in get_args(kind)):
        about += f": {', '.join(get_args(kind))}"
    if not (described or default is False or default in (None, {}, (), PydanticUndefined)):
        shown = str(default.label if isinstance(default, Named) else default)
    return "; default: ".join(filter(None, (about, shown))).strip(": ")


def _is_list(annotation: Any) -> bool:
    """Tell whether an option takes several values, at commas."""
    return any(get_origin(each) is tuple for each in _members(annotation))


def _option_type(annotation: Any) -> Any:
    """Return the type of a flag's value: a plain type or choice as it is, a dict for mappings, else text."""
    members = [each for each in _members(annotation) if each not in (type(None), Code)]
    if len(members) > 1 and any(get_origin(each) is Literal for each in members):
        return str  # a number, or a word in its place
    if get_origin(members[0]) in (dict, Mapping):
        return dict
    plain = members[0] in (bool, int, float, Path) or get_origin(members[0]) is Literal
    return members[0] if plain and len(members) == 1 else str


def _members(annotation: Any) -> list[Any]:
    """Return the types of a union, also of one in a union; any other type alone."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _from_json(examples: Sequence[Any], text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        such = "".join(f" such as '{json.dumps(example)}'" for example in examples)
        raise typer.BadParameter(f"must be a JSON object{such}: {error}") from error
