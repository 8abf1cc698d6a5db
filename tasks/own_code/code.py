"""Users' own functions, stored with their source so that a run can be replayed after their file has changed."""

from __future__ import annotations

import ast
import base64
import functools
import importlib
import importlib.util
import inspect
import io
import pickletools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import cloudpickle

from roundweave.storage.errors import CODE_RAISES, CodeError, failing_as, one_line, reason
from roundweave.storage.values.hashing import bytes_digest, json_digest, text_digest
from roundweave.tasks.own_code.modules import PREFIX, Imports, file_of, is_library, load, module_name, module_of

Definitions = tuple[tuple[str, str], ...]

DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
"""The statements that define what a reference may name."""


@dataclass(frozen=True)
class Code:
    """A user's function as the text of its file, or as a pickle if it has no file (in notebooks).

    `module` is the module's name of its file. `siblings` has the texts of the user's other modules that it
    imports, directly or indirectly, by their paths from the folder of the outermost package. `names` maps the
    first word of an imported name to one of these modules. `definitions` has the digest of each definition in all
    these files, by names such as ``helper.width``. A function of an installed package has no text: it is imported,
    and `definitions` has the package's version. A pickle runs in the version `python` alone; its definitions begin
    with the function's own, which is the same in every process, and wherever the function stands.
    """

    reference: str
    name: str
    source: str = field(repr=False)
    path: str = ""
    module: str = ""
    siblings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    names: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pickled: str = field(default="", repr=False)
    definitions: Definitions = field(default=(), repr=False)
    python: str = field(default="", repr=False)

    @property
    def digest(self) -> str:
        """The digest of everything that decides the function's behaviour."""
        pickled = "" if self.python else self.pickled  # whose bytes counted before there was `python`
        beside = [self.definitions] if pickled and self.definitions else []
        return json_digest([self.name, pickled or self.definitions, *beside])

    @property
    def label(self) -> str:
        """``FILE.py:function`` without the folder, or ``module:function``; in a notebook only the name."""
        return f"{Path(self.path).name or self.module}:{self.name}".removeprefix(":")

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the user's files, by their paths from the folder of the outermost package."""
        if not self.path:
            return {}
        path = Path(self.path)
        own = path.relative_to(_folder(path, self.module or path.stem)).as_posix()
        return dict(self.siblings) | {own: self.source}

    def changed(self, other: Code) -> list[str]:
        """Return the names of definitions that differ between this code and another state of it."""
        mine, theirs = dict(self.definitions), dict(other.definitions)
        return sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))

    def now(self) -> Code:
        """Return this code.

        If it is imported, or imports what it uses, with the definitions that are there now.
        """
        if self.path:
            return self
        self.load()
        own = self.definitions[:1] if self.python else ()
        return replace(self, definitions=own + _of_pickle(self.pickled)) if self.pickled else _of_library(self)

    def load(self) -> Callable[..., Any]:
        """Return the function itself, made by running the stored source. Raises `CodeError`."""
        if self.python not in ("", PYTHON):
            raise CodeError(f"{self.reference}: Python {self.python} kept it, and Python {PYTHON} cannot run it")
        if self.pickled:
            with failing_as(lambda error: CodeError(f"{self.reference}: {one_line(error)}; is it in PYTHONPATH?")):
                function = cloudpickle.loads(base64.b64decode(self.pickled))
        else:
            function = getattr(_module(self), self.name, None)
        if not callable(function):
            there = [part.name for part in ast.parse(self.source).body if isinstance(part, DEFINITIONS)]
            hint = f"; it has {', '.join(there)}" if there else ""
            raise CodeError(f"{self.reference}: the file has no such function or class{hint}")
        return function  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Ran:
    """Runs the user's code when it is unpickled, so that objects of its classes can be unpickled afterwards."""

    code: tuple[Code, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, (self.code,)


def _run(code: tuple[Code, ...]) -> None:
    for module in code:
        module.load()


class WithCode:
    """A base for dataclasses with values of users' classes; `code` is run before the values are unpickled."""

    code: tuple[Code, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_code, (type(self), Ran(self.code), vars(self))


def _with_code(kind: Callable[..., Any], _: None, fields: dict[str, Any]) -> Any:
    return kind(**fields)


def is_reference(text: str) -> bool:
    """Tell whether a text has the form ``FILE.py:function`` or ``module:function``."""
    place, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and bool(place)


def find_code(given: str | Callable[..., Any] | Code) -> Code:
    """Return the code of a ``FILE.py:function``, a ``module:function`` or a callable. Raises `CodeError`."""
    if isinstance(given, Code):
        return given
    if callable(given):
        return _from_callable(given)
    place, _, name = given.rpartition(":")
    if place.endswith(".py"):
        return _from_file(Path(place), name, given)
    here = file_of(Path.cwd(), place)
    if here is not None and not is_library(here, place):
        return _from_file(here, name, given, place)
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError) as error:
        raise CodeError(f"{given}: no module {place!r}, here or installed ({error})") from error
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise CodeError(f"{given}: no module {place!r} with Python source, here or installed")
    return _from_file(Path(spec.origin), name, given, place)


def code_of(function: Callable[..., Any]) -> Code:
    """Return the code of a callable.

    Of one that stored code defines, only if it is found while that code is loaded.

    A part that the user's algorithm makes may hold such a function, whose file may have changed since.
    """
    if not str(getattr(function, "__module__", "")).startswith(PREFIX):
        return _from_callable(function)
    name = function.__qualname__
    return Code(name, name, "", pickled=base64.b64encode(cloudpickle.dumps(function)).decode())


def _from_file(path: Path, name: str, reference: str, place: str = "") -> Code:
    try:
        source = path.read_text(encoding="utf-8")
        path = path.resolve()
        module = module_name(path, source, place)
        if is_library(path, place or module):
            return _of_library(Code(reference, name, "", module=place or module))
        folder = _folder(path, module)
        imports = Imports(folder, module, source)
        definitions = tuple(definitions_of(imports.module, _sources(imports, source)).items())
    except (OSError, UnicodeDecodeError) as error:
        raise CodeError(f"{reference}: cannot read {path} ({reason(error)})") from error
    except SyntaxError as error:
        file = error.filename if error.filename != "<unknown>" else "the file"
        raise CodeError(f"{reference}: {file} does not run: {one_line(error)}") from error
    siblings, names = (tuple(sorted(kept.items())) for kept in (imports.texts, imports.names))
    code = Code(reference, name, source, str(path), module, siblings, names, definitions=definitions)
    code.load()
    return code


def _of_library(code: Code) -> Code:
    """The code of an installed package's function, whose behaviour is identified by the package's version."""
    top = code.module.partition(".")[0]
    code.load()
    version = str(getattr(sys.modules[top], "__version__", sys.version))
    return replace(code, definitions=((f"{code.module} of {top}", version),))


def _of_pickle(pickled: str, read: Callable[[str, str], str] = lambda name, text: text) -> Definitions:
    """The digests of definitions in those of the user's modules that a pickle imports, directly or indirectly.

    `read` gives the text of a module by its name, and the text of its file.
    """
    found: dict[str, str] = {}
    for name in sorted(_texts_in(pickled) - {"__main__", "roundweave"}):
        path = _place(name)
        if path and path.suffix == ".py" and not name.startswith(PREFIX) and not is_library(path, name):
            source = path.read_text(encoding="utf-8")
            sources = _sources(Imports(_folder(path, name), name, source), source)
            found |= definitions_of("", {each: read(each, text) for each, text in sources.items()})
    return tuple(sorted(found.items()))


def _place(name: str) -> Path | None:
    """Return the file of a module, imported or not yet, as a function may import one when it is called.

    Else None.
    """
    if name in sys.modules:
        return Path(getattr(sys.modules[name], "__file__", None) or "")
    known = all(part.isidentifier() for part in name.split("."))
    return next(filter(None, (file_of(Path(folder), name) for folder in sys.path)), None) if known else None


def _texts_in(pickled: str) -> set[str]:
    """Return the texts in a pickle, among which are the names of modules that it imports."""
    steps = pickletools.genops(base64.b64decode(pickled)) if pickled else ()
    return {text for _, text, _ in steps if isinstance(text, str)}


def _as_imported(name: str, text: str) -> str:
    """The text of a module's file when this process first read it after its import: the file may change since."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return text if spec is None else str(vars(spec).setdefault(f"{PREFIX}text", text))


IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)


@functools.lru_cache(maxsize=8)
def imported(codes: tuple[Code, ...]) -> dict[str, str]:
    """What codes import by name in this process: digests of the user's definitions, and versions of packages.

    Left out are packages of which the versions are compared as numerics.
    """
    found: dict[str, str] = {}
    for code in codes:
        with suppress(CodeError):  # then this process has none of these definitions
            now = code.now().definitions
            found |= {} if code.path else _of_pickle(code.pickled, _as_imported) if code.pickled else dict(now)
        names = {name.partition(".")[0] for name in _texts_in(code.pickled)}
        names.update(IMPORT.findall("\n".join(code.texts.values())))
        for name in filter(str.isidentifier, names - {"numpy", "roundweave", "sklearn", "torch"}):
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return found


def _sources(imports: Imports, source: str) -> dict[str, str]:
    """Return the texts of a module and of those that it imports, by name."""
    return {module_of(file): text for file, text in imports.texts.items()} | {imports.module: source}


def _folder(path: Path, module: str) -> Path:
    """Return the folder that holds the outermost package of a module's file."""
    return path.parents[module.count(".") + (path.name == "__init__.py")]


def _from_callable(function: Callable[..., Any]) -> Code:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", ""), None)
    file = getattr(module, "__file__", None)
    if file and module and module.__name__ != "__main__" and getattr(module, name, None) is function:
        code = _from_file(Path(file), name, f"{file}:{name}", re.sub(rf"^{PREFIX}\w+\.", "", module.__name__))
        _check_as_in_file(code, module)
        return code
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    pickled = base64.b64encode(cloudpickle.dumps(function)).decode()
    _Alike(alike := io.BytesIO()).dump(function)
    definitions = ((name, bytes_digest(alike.getvalue())), *_of_pickle(pickled))
    return Code(name, name, source, pickled=pickled, definitions=definitions, python=PYTHON)


PYTHON = ".".join(map(str, sys.version_info[:2]))

BESIDE = {"__file__", "__firstlineno__", "__static_attributes__", "__signature__", "_cloudpickle_submodules"}
BESIDE |= {f"__pydantic_{name}__" for name in ("core_schema", "parent_namespace", "serializer", "validator")}
"""What pickles have of where code stands, of what else its process imported, and what follows from the rest."""


class _Alike(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a function to bytes that are equal in every process, for its digest alone."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        plain = torch and isinstance(obj, torch.Tensor) and obj.layout is torch.strided
        if plain and not (obj.is_meta or obj.is_quantized or obj.is_nested):
            from roundweave.storage.values.digests import tensor_digest  # imports torch

            return str, (tensor_digest("", obj.detach().cpu().resolve_conj().resolve_neg()),)
        if isinstance(obj, CodeType):
            obj = obj.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented and (reduce := self.dispatch_table.get(type(obj))):
            reduced = reduce(obj)
        if isinstance(reduced, tuple) and isinstance(obj, type | TypeVar):  # cloudpickle gives it a random number
            given = (each for each in reduced[1] if not re.fullmatch("[0-9a-f]{32}", str(each)))
            reduced = reduced[0], tuple(given), *reduced[2:]
        return _in_order(reduced)


def _in_order(part: Any, depth: int = 6) -> Any:
    """Return a part of a pickle without what is `BESIDE`, its sets as lists in order."""
    if isinstance(part, set | frozenset):
        return sorted(map(repr, part))
    if depth and type(part) is tuple:
        return tuple(_in_order(each, depth - 1) for each in part)
    if depth and type(part) is dict:
        return {name: _in_order(each, depth - 1) for name, each in part.items() if name not in BESIDE}
    return part


def _check_as_in_file(code: Code, module: ModuleType) -> None:
    """Raise `CodeError` if a number or a text of a function's module was set to another one than its file has."""
    for name, there in vars(_module(code)).items():
        here = vars(module).get(name)
        plain = type(here) is type(there) and isinstance(here, int | float | str) and name[:2] != "__"
        if plain and here != there:
            raise CodeError(
                f"{code.reference}: {name} is {here!r} in this process and {there!r} in the file, which runs; "
                "set it in the file, or give it as an argument, such as by model_options"
            )


def _module(code: Code) -> ModuleType:
    """Return the module of a function: an installed one, else one made of the stored source, once per process."""
    try:
        if not code.path:
            return importlib.import_module(code.module)
        path = Path(code.path)
        module = code.module or path.stem
        folder, texts = _folder(path, module), code.texts
        root = PREFIX + text_digest(repr((code.path, module, texts, code.names)))[:16]
        return load(root, folder, module, texts, dict(code.names))
    except CODE_RAISES as error:
        reason = re.sub(rf"{PREFIX}\w+\.", "", one_line(error))
        raise CodeError(f"{code.reference}: the file does not run: {reason}") from error


def short_name(value: str | Code) -> str:
    """Return a short name for people: a function's own name, or the part of a text before its colon."""
    return value.name if isinstance(value, Code) else value.partition(":")[0]


TOP_LEVEL = "(top level)"
"""What stands for those statements of a module that define nothing by a name."""


def definitions_of(main: str, sources: Mapping[str, str]) -> dict[str, str]:
    """The digest of each definition in modules, by names such as ``f`` in the main one, and ``helper.width``.

    `sources` are the texts of the modules by name. Left out are texts that stand alone, such as docstrings of
    modules, and what a module does only as a script. Raises `SyntaxError`.
    """
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for statement in ast.parse(source, f"{module}.py").body:
            match statement:
                case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                    continue
            for name in _bound(statement) or [TOP_LEVEL]:
                texts[name if module == main else f"{module}.{name}"].append(ast.unparse(statement))
    return {name: text_digest("\n".join(text)) for name, text in sorted(texts.items())}


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement binds."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign() | ast.AnnAssign():
            return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return []
