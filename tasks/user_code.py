"""The user's own functions, kept by value: a run can be replayed after their file has changed."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from storage.errors import CodeError, one_line

OWN_PACKAGES = ("flows", "tasks", "storage", "roundweave")
"""Names that a module beside the user's cannot take."""


@dataclass(frozen=True)
class Code:
    """A function of the user's: the text of its file, or its pickle where it has none (notebooks).

    `siblings` lists the other modules of its folder that it imported, with the SHA-256 of each.
    """

    reference: str
    name: str
    source: str
    path: str = ""
    package: str = ""
    siblings: tuple[tuple[str, str], ...] = ()
    pickled: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the function's behaviour."""
        parts = [self.name, self.source if not self.pickled else self.pickled, self.siblings]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self) -> Callable[..., Any]:
        """The function itself, run from the kept source; raises `CodeError`."""
        if self.pickled:
            return _checked(cloudpickle.loads(base64.b64decode(self.pickled)), self.reference)
        for name, digest in self.siblings:
            sibling = Path(self.path).with_name(name)
            if not sibling.is_file() or _file_digest(sibling) != digest:
                raise CodeError(f"{self.reference} imports {sibling}, which has changed or gone; restore it")
        return _checked(getattr(_module(self), self.name, None), self.reference)


def is_reference(text: str) -> bool:
    """Whether a text reads as ``FILE.py:function`` or ``module:function``."""
    place, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and bool(place)


def find_code(given: str | Callable[..., Any] | Code) -> Code:
    """Keep a ``FILE.py:function``, a ``module:function`` or a callable by value; raises `CodeError`."""
    if isinstance(given, Code):
        return given
    if callable(given):
        return _from_callable(given)
    place, _, name = given.rpartition(":")
    if place.endswith(".py"):
        return _from_file(Path(place), name, given)
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError) as error:
        raise CodeError(f"{given}: no module {place!r} ({error}); give FILE.py:function instead") from error
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise CodeError(f"{given}: no module {place!r} with Python source; give FILE.py:function instead")
    return _from_file(Path(spec.origin), name, given, place.rpartition(".")[0])


def _from_file(path: Path, name: str, reference: str, package: str = "") -> Code:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CodeError(
            f"{reference}: cannot read {path} ({getattr(error, 'strerror', None) or error})"
        ) from error
    path = path.resolve()
    try:
        siblings = _siblings(source, path.parent)
    except SyntaxError as error:
        file = error.filename if error.filename != "<unknown>" else "the file"
        raise CodeError(f"{reference}: {file} does not run: {one_line(error)}") from error
    code = Code(reference, name, source, str(path), package, tuple(sorted(siblings.items())))
    code.load()
    return code


def _siblings(source: str, folder: Path) -> dict[str, str]:
    """The modules of the folder that a source imports, directly or through one another, with their digests."""
    found: dict[str, str] = {}
    todo = [(source, "the file")]
    while todo:
        for module in _imported(todo.pop()):
            path = folder / f"{module.partition('.')[0]}.py"
            if path.name not in found and path.stem not in OWN_PACKAGES and path.is_file():
                found[path.name] = _file_digest(path)
                todo.append((path.read_text(encoding="utf-8"), str(path)))
    return found


def _imported(source: tuple[str, str]) -> list[str]:
    """The modules that a (text, file name) imports; of a package's `from . import a, b`, those names."""
    nodes = list(ast.walk(ast.parse(*source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names += [node.module] if node.module else [alias.name for alias in node.names]
    return names


def _from_callable(function: Callable[..., Any]) -> Code:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", ""), None)
    file = getattr(module, "__file__", None)
    if file and module and module.__name__ != "__main__" and getattr(module, name, None) is function:
        return _from_file(Path(file), name, f"{file}:{name}", module.__name__.rpartition(".")[0])
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return Code(name, name, source, pickled=base64.b64encode(cloudpickle.dumps(function)).decode())


def _module(code: Code) -> ModuleType:
    """The kept source as a module of its own, made once per process for the same siblings."""
    key = repr((code.path, code.source, code.siblings))
    name = f"roundweave_code_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    _make_room(code)
    module = ModuleType(name)
    module.__file__ = code.path
    module.__package__ = code.package
    sys.modules[name] = module
    try:
        exec(compile(code.source, code.path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CodeError(f"{code.reference}: the file does not run: {one_line(error)}") from error
    return module


def _make_room(code: Code) -> None:
    """Have siblings imported from the code's folder as they are now, not another folder's or an older text."""
    folder = str(Path(code.path).parent)
    if not code.package:
        sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    importlib.invalidate_caches()
    for sibling, _ in code.siblings:
        sys.modules.pop(f"{code.package}.{Path(sibling).stem}".lstrip("."), None)


def _checked(function: Any, reference: str) -> Callable[..., Any]:
    if not callable(function):
        raise CodeError(f"{reference}: the file has no such function")
    return function  # type: ignore[no-any-return]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
