"""Writes `flows/composed.pyi`, the stub of `TrainConfig`: run ``python -m tests.flows.stub``."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BeforeValidator, ByteSize

from roundweave.flows import composed
from roundweave.flows.config.algorithms import Named
from roundweave.flows.config.plugins import OwnPlugin, plugin_classes
from roundweave.tasks.own_code.code import Code

STUB = Path(composed.__file__).with_suffix(".pyi")

TEXT = """# Made by `python -m tests.flows.stub`, which any change of an option needs.

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from roundweave.flows.config.train import TrainConfig as Kernel
from roundweave.flows.plugin import Plugin
from roundweave.storage.places.base import Where
from roundweave.tasks.own_code.code import Code

class TrainConfig(Kernel):
    {fields}
    def __init__(self, *, {options}, **options: Any) -> None: ...

def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig: ...
"""

OWN = "Callable[..., Any]"
TAKEN = {kind: [kind.__name__] for kind in (int, float, bool, str)} | {ByteSize: ["int", "str"], Code: [OWN]}
TAKEN |= {Named: ["str", OWN, "Mapping[str, Any]"], OwnPlugin: ["str", "type[Plugin]", "Mapping[str, Any]"]}
TAKEN |= {Path: ["Path", "str"], type(None): ["None"]}
"""What `TrainConfig` takes in place of these classes."""


def shown(kind: Any, taken: bool, metadata: Any = ()) -> str:
    """The text of an annotation: of what is `taken` for a field, or else of what the field holds."""
    return " | ".join(sorted(dict.fromkeys(_alternatives(kind, taken, metadata)), key="None".__eq__))


def _alternatives(kind: Any, taken: bool, metadata: Any = ()) -> Iterator[str]:
    parts = get_args(kind)
    match get_origin(kind):
        case typing.Annotated:
            yield from _alternatives(parts[0], taken, kind.__metadata__)
        case typing.Union | types.UnionType:
            yield from (text for part in parts for text in _alternatives(part, taken))
        case typing.Literal:
            yield f"Literal[{', '.join(map(repr, parts))}]"
        case builtins.tuple:
            kinds = ["..." if part is ... else shown(part, taken) for part in parts]
            yield f"Sequence[{kinds[0]}]" if taken and "..." in kinds else f"tuple[{', '.join(kinds)}]"
        case builtins.dict:
            yield "Mapping[str, Any]" if taken else "dict[str, Any]"
        case _:
            yield from TAKEN.get(kind, ["Any"]) if taken or kind is type(None) else [kind.__name__]
    if taken and any(isinstance(each, BeforeValidator) for each in metadata):
        yield "str"


def stub() -> str:
    """The text of the stub, unformatted."""
    fields = composed.TrainConfig.model_fields
    kinds = {name: shown(field.annotation, True, field.metadata) for name, field in sorted(fields.items())}
    options = ", ".join(f"{name}: {kind} = ..." for name, kind in (kinds | {"root": "str | Path"}).items())
    added = {name: field for plugin in plugin_classes() for name, field in plugin.model_fields.items()}
    holds = [f"{name}: {shown(field.annotation, taken=False)}" for name, field in added.items()]
    return TEXT.format(fields="\n    ".join(holds), options=options)


if __name__ == "__main__":
    STUB.write_text(stub())
    subprocess.run([Path(sys.executable).with_name("ruff"), "format", STUB], check=True)
