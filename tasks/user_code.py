"""The user's own functions, kept by value: a run can be replayed after their file has changed."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from storage.errors import CodeError, one_line, reason
from tasks.definitions import imported_modules, used_definitions

OWN_PACKAGES = ("flows", "tasks", "storage", "roundweave")
"""Names that a module beside the user's cannot take."""


@dataclass(frozen=True)
class Code:
    """A function of the user's: the text of its file, or its pickle where it has none (notebooks).

    `siblings` lists the other modules of its folder that it imported, with the SHA-256 of each; `definitions` what
    it uses in its file and in them, by names such as ``helper.width``, with the SHA-256 of each.
    """

    reference: str
    name: str
    source: str = field(repr=False)
    path: str = ""
    package: str = ""
    siblings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pickled: str = field(default="", repr=False)
    definitions: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the function's behaviour."""
        parts = [self.name, self.pickled or self.definitions]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def label(self) -> str:
        """What it is called: ``FILE.py:function`` without the folder, of a notebook's function its name."""
        return self.name if self.pickled else f"{Path(self.path).name}:{self.name}"

    def changed(self, other: Code) -> list[str]:
        """The definitions that are not the same in two states of the code."""
        mine, theirs = dict(self.definitions), dict(other.definitions)
        return sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))

    def beside_now(self) -> Code:
        """The same source with the modules beside it as they are now, but for those that are gone."""
        if not self.siblings:
            return self
        path = Path(self.path)
        try:
            now = {file.name: _file_digest(file) for file in _siblings(self.source, path)}
            definitions = _definitions(self.name, self.source, path)
        except SyntaxError as error:
            raise CodeError(f"{self.reference}: {error.filename} does not run: {one_line(error)}") from error
        siblings = tuple(sorted((dict(self.siblings) | now).items()))
        return self if siblings == self.siblings else replace(self, siblings=siblings, definitions=definitions)

    def load(self) -> Callable[..., Any]:
        """The function itself, run from the kept source; raises `CodeError`."""
        if self.pickled:
            return _checked(cloudpickle.loads(base64.b64decode(self.pickled)), self.reference)
        for name, digest in self.siblings:
            sibling = Path(self.path).with_name(name)
            if not sibling.is_file() or (_file_digest(sibling) != digest and self._uses_changed(sibling)):
                raise CodeError(f"{self.reference} imports {sibling}, which has changed or gone; restore it")
        return _checked(getattr(_module(self), self.name, None), self.reference)

    def _uses_changed(self, sibling: Path) -> bool:
        """Whether of a sibling that changed something is used by the function."""
        now = replace(self, definitions=_definitions(self.name, self.source, Path(self.path)))
        return any(name.startswith(f"{sibling.stem}.") for name in self.changed(now))


@dataclass(frozen=True)
class Ran:
    """The user's code, run when it is unpickled: what is unpickled after it may be of its classes."""

    code: tuple[Code, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _ran, (self.code,)


def _ran(code: tuple[Code, ...]) -> Ran:
    for module in code:
        module.load()
    return Ran(code)


class WithCode:
    """A dataclass with values of the user's classes; its field `code` is run in a process that unpickles them."""

    code: tuple[Code, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_code, (type(self), Ran(self.code), vars(self))


def _with_code(kind: Callable[..., Any], _: Ran, fields: dict[str, Any]) -> Any:
    return kind(**fields)


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
        raise CodeError(f"{reference}: cannot read {path} ({reason(error)})") from error
    path = path.resolve()
    try:
        siblings = {file.name: _file_digest(file) for file in _siblings(source, path)}
        definitions = _definitions(name, source, path)
    except SyntaxError as error:
        file = error.filename if error.filename != "<unknown>" else "the file"
        raise CodeError(f"{reference}: {file} does not run: {one_line(error)}") from error
    kept = tuple(sorted(siblings.items()))
    code = Code(reference, name, source, str(path), package, kept, definitions=definitions)
    code.load()
    return code


def _siblings(source: str, path: Path) -> dict[Path, str]:
    """The modules beside a file that it imports, directly or through one another, with their texts."""
    texts: dict[Path, str] = {}
    todo = [(source, "the file")]
    for text, file in todo:  # it grows meanwhile
        for module in imported_modules(text, file):
            sibling = path.with_name(f"{module.partition('.')[0]}.py")
            if sibling not in texts and sibling.stem not in OWN_PACKAGES and sibling.is_file():
                texts[sibling] = sibling.read_text(encoding="utf-8")
                todo.append((texts[sibling], str(sibling)))
    return texts


def _definitions(name: str, source: str, path: Path) -> tuple[tuple[str, str], ...]:
    """What a function uses in its file and in those beside it; raises `SyntaxError`."""
    sources = {file.stem: text for file, text in _siblings(source, path).items()} | {path.stem: source}
    return tuple(used_definitions(path.stem, name, sources).items())


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
        reason = one_line(error) + _hint(code, error)
        raise CodeError(f"{code.reference}: the file does not run: {reason}") from error
    return module


def _hint(code: Code, error: BaseException) -> str:
    """What to do where the file imports a module beside it that is called as a package of ours."""
    name = str(getattr(error, "name", None)).partition(".")[0]
    beside = Path(code.path).with_name(f"{name}.py")
    return f"; rename {beside}, for {name} is Roundweave's own" if name in OWN_PACKAGES and beside.exists() else ""


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


def short_name(value: str | Code) -> str:
    """A name for people: of a function its own, of a data set the part before the folder."""
    return value.name if isinstance(value, Code) else value.partition(":")[0]
