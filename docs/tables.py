"""Tables of the generated pages: what an option, a type, a flag or a docstring is in a cell."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic_core import PydanticUndefined

from roundweave.flows.config.algorithms import Named
from roundweave.tasks.algorithms.algebra import as_given

Row = Sequence[object]

SIGNS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
"""The bounds of a number, and how they are shown."""

NAMES = {
    "Mapping": "dict",
    "Code": "function",
    "Path": "path",
    "Named": "name or table",
    "ByteSize": "int or str",
    "Recombined": "table",
    "Fork": "table",
    "Start": "table",
}
"""Types in the words of a reader."""


def of_model(group: str, model: Any) -> list[Row]:
    """A row for each field of a configuration, which belongs to a group."""
    return [(*described(name, field), group) for name, field in model.model_fields.items()]


def described(name: str, field: Any) -> Row:
    """An option's name, description, type and default; a phone shows the first two."""
    default = field.get_default(call_default_factory=True)
    default = default.label if isinstance(default, Named) else default
    shown = "" if default in (None, PydanticUndefined, (), {}) else f"`{default}`"
    bounds = "".join(
        f", {sign}\N{NO-BREAK SPACE}{getattr(each, of)}"
        for each in field.metadata
        for of, sign in SIGNS
        if hasattr(each, of)
    )
    return f"`{name}`", field.description or "", f"`{type_of(field.annotation)}`{bounds}", shown


def linked(row: Row) -> Row:
    """A row whose name is an anchor, so that a link leads to an option."""
    name, *rest = row
    return f"[{name}]{{#{str(name).strip('`')}}}", *rest


def type_of(annotation: Any) -> str:
    """A type in the words of a reader of Python."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if str(origin) == "typing.Annotated" or hasattr(annotation, "__metadata__"):
        return type_of(parts[0])
    if str(origin) == "typing.Literal":
        return " or ".join(map(repr, parts))
    if origin is not None and "Union" in str(origin):
        return " or ".join(dict.fromkeys(type_of(part) for part in parts if part is not type(None)))
    if annotation is Any:
        return "any"
    name = getattr(origin or annotation, "__name__", str(annotation))
    if name == "tuple":
        return f"list of {type_of(parts[0])}" if parts else "list"
    return NAMES.get(name, name)


def label_of(part: Any) -> str:
    """The name of a part, with the options that differ from its class's."""
    return part.__name__ if isinstance(part, type) else as_given(part).removesuffix("()")


def flags(param: Any) -> str:
    """How an argument or an option of a command is written."""
    if param.param_type_name == "argument":
        return f"`{param.name.upper()}`"
    value = "" if param.is_flag else " …"
    return ", ".join(f"`{flag}{value}`" for flag in (*param.opts, *param.secondary_opts))


def usage(param: Any) -> str:
    """An argument in a line of usage: `[NAME]` may be left out, `NAME...` may be several."""
    name = param.name.upper() + "..." * (param.nargs == -1)
    return name if param.required else f"[{name}]"


def few(names: Sequence[str]) -> str:
    """The first two of these names, and how many more there are."""
    shown = ", ".join(f"`{name}`" for name in names[:2])
    return f"{shown} and {len(names) - 2} more" if len(names) > 3 else shown or "a part"


def about(found: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())


def first_sentence(found: Any) -> str:
    """The first sentence of a docstring."""
    found = found.__func__ if isinstance(found, classmethod) else found
    text = about(found)
    end = re.search(r"(?<! al)\. ", text)
    return text[: end.start() + 1] if end else text


def table(head: Row, rows: Iterable[Row]) -> list[str]:
    """A table in Markdown; a cell is text of one line."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    if len(cells) == 1:
        return []
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]]
