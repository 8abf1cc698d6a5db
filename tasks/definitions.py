"""Which definitions a function uses, in its file and in the modules beside it: what decides what it does.

It is read off the source, and rather takes too much: what a module always runs counts, and all of it where names
may be looked up by their text, as `globals` does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

TOP_LEVEL = "(top level)"
"""What stands for those statements of a module that do more than define, and are run whatever is used."""


EVERY = "*"


DYNAMIC = {"globals", "locals", "vars", "eval", "exec", "__import__", "importlib", "__getattr__"}
DYNAMIC |= {"__subclasses__", "__init_subclass__"}
"""Names through which others are reached by their text."""


Use = tuple[str, str]
"""A module, and a name in it; `EVERY` stands for all of its names."""


def used_definitions(
    module: str,
    name: str,
    sources: Mapping[str, str],
    packages: Collection[str] = (),
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The SHA-256 of each definition that a function of a module uses, by names such as ``f``, ``helper.width``.

    `sources` are the texts of its module and of those beside it, by name, of which some are `packages`; `names`
    says which of them the first word of an import is, itself by default. Raises `SyntaxError`.
    """
    known = _Known(set(sources), set(packages), {key: key for key in sources} if names is None else names)
    modules = {key: _Module(key, text, known) for key, text in sources.items()}
    texts: dict[str, str] = {}
    todo: list[Use] = [(module, TOP_LEVEL), (module, name)]
    for place, used in todo:  # it grows meanwhile
        key = used if place == module else f"{place}.{used}"
        if key not in texts:
            texts[key] = modules[place].text(used)
            todo += modules[place].uses(used)
            parent = place.rpartition(".")[0]
            todo += [(parent, TOP_LEVEL)] * (parent in modules)
    return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in sorted(texts.items()) if text}


@dataclass(frozen=True)
class _Known:
    """The user's modules, those of them that are packages, and what the first words of imports stand for."""

    modules: set[str]
    packages: set[str]
    names: Mapping[str, str]

    def own(self, name: str) -> str:
        """The module of the user's that a name is, nothing where it is another's."""
        top, _, rest = name.partition(".")
        return f"{self.names[top]}.{rest}".rstrip(".") if top in self.names else ""


class _Module:
    """What a module binds by name, which names it has from beside it, and what it always uses."""

    def __init__(self, name: str, source: str, known: _Known) -> None:
        self.name = name
        self.known = known
        self.package = name if name in known.packages else name.rpartition(".")[0]
        self.lines = source.splitlines()
        self.bound: dict[str, list[ast.stmt]] = {TOP_LEVEL: []}
        self.beside: dict[str, Use] = {}
        self.always: list[Use] = []
        for statement in ast.parse(source, f"{name}.py").body:
            self._add(statement)

    def text(self, used: str) -> str:
        """The source of the statements that bind a name."""
        return "\n".join(self._source(statement) for statement in self.bound.get(used, ()))

    def _source(self, statement: ast.stmt) -> str:
        if _is_import(statement):
            return ast.unparse(statement)
        first = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", ())))
        return "\n".join(self.lines[first - 1 : statement.end_lineno])

    def uses(self, used: str) -> Iterator[Use]:
        """The names that a name uses."""
        if used == EVERY:
            yield from ((self.name, name) for name in (*self.bound, *self.beside))
        if used == TOP_LEVEL:
            yield from self.always
        if used in self.beside:
            yield self.beside[used]
        for statement in self.bound.get(used, ()):
            yield from self._names(statement)

    def _names(self, statement: ast.stmt) -> Iterator[Use]:
        """The names that a statement mentions, those of modules beside this one by their module."""
        inner = {name: use for node in ast.walk(statement) for name, use in self._imported(node).items()}
        yield from ((module, EVERY if "." in name else TOP_LEVEL) for name, (module, _) in inner.items())
        beside = self.beside | inner
        modules = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = beside.get(node.value.id, ("", ""))
                if name == EVERY:
                    modules.add(node.value)
                    yield module, node.attr
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in modules:
                yield beside.get(node.id, (self.name, node.id))
            if DYNAMIC & {getattr(node, kind, None) for kind in ("id", "name", "attr")}:
                yield self.name, EVERY

    def _add(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom():
                self._add_import(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if statement.name in DYNAMIC or any(map(self._is_own, statement.decorator_list)):
                    self.always.append((self.name, statement.name))
                self.bound.setdefault(statement.name, []).append(statement)
            case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                pass  # a text, and what a script does, which is never run here
            case _:
                self._add_run(statement)

    def _add_import(self, statement: ast.Import | ast.ImportFrom) -> None:
        beside = self._imported(statement)
        self.beside |= beside
        for name, (module, _) in beside.items():
            self.always.append((module, EVERY if name == EVERY or "." in name else TOP_LEVEL))
        for name in _bound(statement):
            if name not in {bound.partition(".")[0] for bound in beside}:
                self.bound.setdefault(name, []).append(statement)

    def _add_run(self, statement: ast.stmt) -> None:
        """A statement that is run, and so counts always unless it assigns to names what nothing is called for."""
        nodes = list(ast.walk(statement))
        for name in dict.fromkeys(name for node in nodes for name in _bound(node)):
            self.bound.setdefault(name, []).append(statement)
        for node in nodes:
            self.beside |= self._imported(node)
        plain = isinstance(statement, ast.Assign | ast.AnnAssign)
        if not plain or any(isinstance(node, ast.Call) or _changes(node) for node in nodes):
            self.bound[TOP_LEVEL].append(statement)

    def _is_own(self, decorator: ast.expr) -> bool:
        """Whether a decorator comes from here or from beside, and so may make itself known to what is used."""
        names = {node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)}
        here = {
            n
            for n, made in self.bound.items()
            if not all(isinstance(m, ast.Import | ast.ImportFrom) for m in made)
        }
        return bool(names & (here | set(self.beside)))

    def _imported(self, node: ast.AST) -> dict[str, Use]:
        """What an import brings from modules beside this one, by the name that it has here."""
        uses: dict[str, Use] = {}
        for bound, module, name in imported(node, self.package, self.known.own):
            if (inner := f"{module}.{name}".strip(".")) in self.known.modules:
                uses[bound] = inner, EVERY
            elif module in self.known.modules:
                uses[bound] = module, name or EVERY
        return uses


def imported(node: ast.AST, package: str, own: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
    """What an import in a package brings of the user's own: its name here, the module, and the name in that.

    `own` gives the module of theirs that a name is, or nothing. ``import a.b`` has ``a.b`` as its name here.
    """
    if isinstance(node, ast.Import):
        found = ((alias.asname or alias.name, own(alias.name), "") for alias in node.names)
        yield from (one for one in found if one[1])
    elif isinstance(node, ast.ImportFrom):
        module = own(node.module or "")
        if node.level:
            outer = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*outer, node.module or ""]).strip(".")
        if module or node.level:
            yield from ((alias.asname or alias.name, module, alias.name) for alias in node.names)


def _bound(node: ast.AST) -> list[str]:
    """The names that a node binds itself, wherever it stands."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
    return []


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _changes(node: ast.AST) -> bool:
    """Whether it assigns to a part of something that is there."""
    return isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
