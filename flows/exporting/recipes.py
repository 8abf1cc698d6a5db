"""How a stored network is made without Roundweave: the files with its code, and an expression that uses them."""

from __future__ import annotations

import base64
import inspect
import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from roundweave.tasks.networks import reference
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.own_code.modules import PREFIX

BUILT_IN = "roundweave_networks"
"""The module that has the code of the built-in networks in an exported folder."""

OURS = "from roundweave.storage.errors import ModelError\n"
"""The only line of that code that needs Roundweave."""


@dataclass(frozen=True)
class Recipe:
    """The contents of files by their paths, folders to import from, an expression, and what it needs besides."""

    files: Mapping[str, bytes]
    paths: tuple[str, ...]
    call: str
    needs: str = ""


def recipe_of(spec: ModelSpec) -> Recipe:
    """The recipe for the network of a specification, before its tensors are loaded."""
    options = json.loads(spec.options)
    given = [f"**{options!r}"] * bool(options)
    if isinstance(spec.model, Code):
        return _own_recipe(spec.model, ", ".join(given))
    source = inspect.getsource(reference).replace(OURS, "ModelError = ValueError\n")
    arguments = ", ".join([repr(spec.inputs), repr(spec.outputs), *given])
    call = f"import_module({BUILT_IN!r}).MODELS[{spec.model!r}]({arguments})"
    return Recipe({f"code/{BUILT_IN}.py": source.encode()}, ("code",), call)


def _own_recipe(code: Code, given: str) -> Recipe:
    if code.pickled:
        read = "import_module('pickle').loads((folder / 'code/model.pickle').read_bytes())"
        files = {"code/model.pickle": base64.b64decode(code.pickled)}
        needs = f"cloudpickle and Python {platform.python_version()}, as it was defined in a notebook or a script"
        return Recipe(files, (), f"{read}({given})", needs)
    files = {f"code/{path}": text.encode() for path, text in code.texts.items()}
    beside = {f"code/{place.replace('.', '/')}".rpartition("/")[0] for _, place in code.names}
    ours = any(re.search(rb"^\s*(from|import) roundweave\b", text, re.MULTILINE) for text in files.values())
    needs = "" if files else f"the package {code.module.partition('.')[0]}"
    call = f"import_module({code.module!r}).{code.name}({given})"
    return Recipe(
        files, tuple(sorted({"code", *beside})), call, "Roundweave, which its code imports" if ours else needs
    )


def pretrained(network: nn.Module) -> str | None:
    """An expression that loads a network of a class that reads and writes folders by itself, if it is of one."""
    kind = type(network)
    importable = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    if not (importable and kind.__module__ != "__main__" and hasattr(kind, "from_pretrained")):
        return None
    module = re.sub(rf"^{PREFIX}\w+?\.", "", kind.__module__)
    return f"import_module({module!r}).{kind.__qualname__}.from_pretrained(folder)"
