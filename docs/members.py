"""What autodoc shows of classes: their fields with short types and descriptions, and nothing that is empty."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from tables import type_of

CODE, MARKS = re.compile(r"\s*(>>>|\.\.\. )"), re.compile(r"``.*?``|[*|]")
TYPE = re.compile(r":(vartype) (\S+): (.*)")
QUALIFIED = re.compile(r"\b(?:[a-z_]\w*\.)+(?=\w)")
WRAPPED = re.compile(r"(?:ClassVar|Final)\[(.*)\]$|Annotated\[(.*?), (?:FieldInfo|\w+\().*\]$", re.DOTALL)


def escape(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Docstrings write shapes such as (n, *shape): their stars and bars are no markup."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith("`") else f"\\{found[0]}"

    lines[:] = [line if CODE.match(line) else MARKS.sub(escaped, line) for line in lines]


def tidy(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """What napoleon has written: types get short, a result is one text, and options are described."""
    for number, line in enumerate(lines):
        if typed := TYPE.match(line):
            lines[number] = f":vartype {typed[2]}: {short(typed[3])}"
        elif line.startswith(":rtype: "):  # a text before a colon, not a type
            start = max((at for at in range(number) if lines[at].startswith(":returns: ")), default=None)
            if start is not None:
                lines[start] = (
                    f":returns: {line.removeprefix(':rtype: ')}: {lines[start].removeprefix(':returns: ')}"
                )
                lines[number] = ""
        elif line.startswith(":type: ") and what in ("property", "attribute"):  # likewise
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"
            lines[number] = ""
    if what == "class" and is_dataclass(found):
        told = " ".join(lines)
        for each in fields(found):
            start = next((at for at, line in enumerate(lines) if line.startswith(f":param {each.name}:")), None)
            if start is not None and f":type {each.name}:" not in told:
                lines.insert(start, f":type {each.name}: {short(str(each.type))}")
        lines += ["", *(line for line in _options(found) if f":ivar {line.split()[1]}" not in told), ""]


def _options(found: Any) -> Iterator[str]:
    """The fields of a dataclass that have a description beside their types."""
    for each in fields(found):
        hint = _hint(found, each.name)
        told = [note.description for note in getattr(hint, "__metadata__", ()) if getattr(note, "description", "")]
        if told:
            yield f":ivar {each.name}: {told[0]}"
            yield f":vartype {each.name}: {type_of(hint)}"


def _hint(found: type, name: str) -> Any:
    """The type of a field; None for one that only a type checker knows."""
    home = next(each for each in found.__mro__ if name in vars(each).get("__annotations__", ()))
    hint = home.__annotations__[name]
    try:
        return eval(hint, vars(sys.modules[home.__module__])) if isinstance(hint, str) else hint
    except NameError:
        return None


def short(text: str) -> str:
    """A type without the modules of its names, and without what pydantic knows of it."""
    while wrapped := WRAPPED.match(text):
        text = wrapped[1] or wrapped[2]
    return QUALIFIED.sub("", text)


def without_types(
    app: Sphinx, what: str, name: str, found: object, options: object, shown: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """What a class takes; the types stand beside its fields, and those of a configuration in a table."""
    if what != "class" or shown in (None, "(**options)"):
        return shown, result
    parameters = inspect.signature(found).parameters.values()  # type: ignore[arg-type]
    bare = [each.replace(annotation=each.empty) for each in parameters]
    return f"({', '.join(str(each).replace('=<factory>', '=…') for each in bare)})", None


def skip(app: Sphinx, what: str, name: str, found: object, skipped: bool, options: object) -> bool | None:
    """Pydantic's settings are no part of a class that a reader uses."""
    return name == "model_config" or None


def reword(app: Sphinx, document: nodes.document) -> None:
    """Field lists in the words of Python: attributes, and a colon between a name and its text."""
    for field in document.findall(nodes.field_name):
        if field.astext() == "Variables":
            field.children[:] = [nodes.Text("Attributes")]
    for text in list(document.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", escape, priority=1)
    app.connect("autodoc-process-docstring", tidy, priority=900)
    app.connect("autodoc-process-signature", without_types)
    app.connect("autodoc-skip-member", skip)
    app.connect("doctree-read", reword)
    return {"parallel_read_safe": True}
