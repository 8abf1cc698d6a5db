"""Tables of names: the meaning of a ``name`` or ``name:argument``, and one error for unknown names."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from roundweave.storage.errors import CodeError, UsageError, failing_as, located, near
from roundweave.tasks.own_code.code import Code


@dataclass(frozen=True)
class Entry:
    """A line of a table: what it is, its home (``.module:name`` of tasks), and how its argument is written.

    The argument stands after a colon. An argument in brackets is optional. The module is imported on first use.
    """

    about: str
    home: str
    argument: str = ""

    def load(self) -> Any:
        """Return the object of the entry."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module, "roundweave.tasks"), name)


Table = Mapping[str, Entry]


def spelled(table: Table) -> list[str]:
    """Return how each name of a table is written, such as ``mnist:DIR``."""
    return [_spelled(name, entry) for name, entry in table.items()]


def _spelled(name: str, entry: Entry) -> str:
    return f"{name}{'' if entry.argument.startswith('[') else ':'}{entry.argument}" if entry.argument else name


def find(what: str, text: str, table: Table, *others: str) -> tuple[Entry, str]:
    """Return the entry of a ``name`` or ``name:argument``, and the argument.

    Raises `UsageError` for any other text.
    """
    name, _, argument = text.partition(":")
    if name not in table:
        raise unknown(what, text, [*spelled(table), *others])
    entry = table[name]
    if bool(argument) != bool(entry.argument):
        needs = f"needs its {entry.argument}: {_spelled(name, entry)}"
        raise UsageError(f"{what} {name} {needs if entry.argument else f'takes no {argument!r}'}")
    return entry, argument


def make(what: str, text: str, table: Table) -> Any:
    """Make the object of ``name:argument``, with arguments of the annotated types. Raises `UsageError`.

    The last argument may have colons of its own.
    """
    name, _, rest = text.partition(":")
    if name not in table:
        raise unknown(what, text, spelled(table))
    function = table[name].load()
    signature = inspect.signature(function, eval_str=True)
    kinds = signature.parameters
    try:
        given = signature.bind(*(rest.split(":", len(kinds) - 1) if rest else ())).arguments
        arguments = {key: TypeAdapter(kinds[key].annotation).validate_python(given[key]) for key in given}
    except (TypeError, ValueError) as error:
        why = f": {error.errors()[0]['msg']}" if isinstance(error, ValidationError) else ""
        raise UsageError(f"{what} {text!r} must be written {_spelled(name, table[name])}{why}") from error
    return function(**arguments)


def make_own(what: str, code: Code, base: type) -> Any:
    """Return the part that the user's code is, or that it returns when called.

    Raises `CodeError` and `UsageError`.
    """
    part = code.load()
    if base not in type(part).__mro__:
        _check_callable(f"{what} {code.reference}", part)
        with failing_as(lambda error: CodeError(f"{code.reference} failed with {located(error)}")):
            part = part()
    if base not in type(part).__mro__:
        raise UsageError(
            f"{what} {code.reference} must give a roundweave.{base.__name__}, not {type(part).__name__}"
        )
    return part


def _check_callable(what: str, part: Any) -> None:
    """Raise `UsageError` for a class or function that cannot be called without arguments."""
    if lacking := getattr(part, "__abstractmethods__", ()):
        raise UsageError(f"{what} must define {', '.join(sorted(lacking))}")
    try:
        inspect.signature(part).bind()
    except TypeError as error:
        raise UsageError(f"{what} is made without arguments ({error}); give what it takes a default") from error


def _defined_in(file: Path) -> list[str]:
    """Return the functions and classes of a user's file, each as ``FILE.py:name``; none if it cannot be read."""
    with suppress(OSError, ValueError, SyntaxError):
        parts = ast.parse(file.read_bytes()).body
        return [f"{file}:{part.name}" for part in parts if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    return []


def unknown(what: str, value: str, names: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the nearest name and all names of the table."""
    if value.endswith(".py") and (own := _defined_in(Path(value))):
        return UsageError(f"{what} {value} is a file; name what of it is meant: {', '.join(own)}")
    if ".py:" in value:
        return UsageError(f"{what} {value!r} must be written FILE.py:function, with the function's bare name")
    names = list(names)
    meant = (
        []
        if value.startswith("non")
        else near(value.partition(":")[0], [name.partition(":")[0] for name in names])
    )
    hint = f"did you mean {meant[0]}? There" if meant else "there"
    return UsageError(f"unknown {what} {value!r}; {hint} are {', '.join(names[:-1])}, and {names[-1]}")
