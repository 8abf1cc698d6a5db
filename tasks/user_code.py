"""The user's own functions, kept by value: a run can be replayed after their file has changed."""

from __future__ import annotations

import ast
import base64
import hashlib
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

from storage.errors import CodeError


@dataclass(frozen=True)
class Code:
    """A function of the user's: the text of its file, or its pickle where it has none (notebooks).

    `siblings` lists the other modules of its folder that it imported, with the SHA-256 of each.
    """

    reference: str
    name: str
    source: str
    folder: str = ""
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
            path = Path(self.folder, name)
            if not path.is_file() or _file_digest(path) != digest:
                raise CodeError(f"{self.reference} imports {path}, which has changed or gone; restore it")
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
    folder = str(path.resolve().parent)
    code = Code(reference, name, source, folder, package)
    code.load()
    siblings = _siblings(source, Path(folder))
    return Code(reference, name, source, folder, package, tuple(sorted(siblings.items())))


def _siblings(source: str, folder: Path) -> dict[str, str]:
    """The modules of the folder that a source imports, directly or through one another, with their digests."""
    found: dict[str, str] = {}
    todo = [source]
    while todo:
        for module in _imported(todo.pop()):
            path = folder / f"{module.partition('.')[0]}.py"
            if path.name not in found and path.is_file():
                found[path.name] = _file_digest(path)
                todo.append(path.read_text(encoding="utf-8"))
    return found


def _imported(source: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


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
    """The kept source as a module of its own, made once per process."""
    name = f"roundweave_code_{hashlib.sha256((code.folder + code.source).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if code.folder not in sys.path and not code.package:
        sys.path.insert(0, code.folder)
    module = ModuleType(name)
    module.__file__ = str(Path(code.folder, code.reference.rpartition(":")[0]).resolve())
    module.__package__ = code.package
    sys.modules[name] = module
    try:
        exec(compile(code.source, module.__file__, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise CodeError(f"{code.reference}: the file does not run: {_reason(error)}") from error
    return module


def _checked(function: Any, reference: str) -> Callable[..., Any]:
    if not callable(function):
        raise CodeError(f"{reference}: the file has no such function")
    return function  # type: ignore[no-any-return]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
