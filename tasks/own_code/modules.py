"""Users' own modules: finds those that a file imports, and imports them from their stored texts without files.

In a process, their names begin with a root that is unique to the code they belong to. So they cannot hide other
modules or be hidden by them, whatever their names are.
"""

from __future__ import annotations

import ast
import builtins
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "roundweave_code_"

_folders: set[str] = set()
"""The folders of users' code that this process has put at the end of its path."""


def file_of(folder: Path, module: str) -> Path | None:
    """Return the file of a module below a folder, or None if there is none."""
    place = folder.joinpath(*module.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def module_of(file: str) -> str:
    """Return the module's name of a file, whose path is relative to the folder of the outermost package."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_name(path: Path, source: str, name: str = "") -> str:
    """A file's module name: `name` if it fits the path, else found by `__init__` files and relative imports."""
    package = path.name == "__init__.py"
    parts = (path.parent if package else path.with_suffix("")).parts
    if name and parts[-name.count(".") - 1 :] == tuple(name.split(".")):
        return name
    least = max((n.level for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)), default=0)
    depth, folder = 0, path.parent
    while (depth < least or (folder / "__init__.py").is_file()) and folder.name and "." not in folder.name:
        depth, folder = depth + 1, folder.parent
    return ".".join(parts[len(parts) - max(depth + (not package), 1) :])


def is_library(path: Path, module: str) -> bool:
    """Tell whether a module's file belongs to an installed package, the standard library or Roundweave."""
    installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or module.startswith("roundweave.")
    return installed or path.is_relative_to(sysconfig.get_path("stdlib"))


class Imports:
    """The user's modules that a module imports, directly or indirectly.

    `texts` has the text of each by its path from the folder of the outermost package. `names` maps the first word
    of an imported name to one of these modules. Raises `SyntaxError`.
    """

    def __init__(self, folder: Path, module: str, source: str) -> None:
        self.folder = folder
        self.module = module
        self.texts: dict[str, str] = {}
        self._places = {"roundweave": ""}  # it may lie beside the user's files, in a checkout
        self._todo: list[tuple[Path, str]] = []
        file = file_of(folder, module)
        assert file is not None
        self._add(file, source)
        self._keep(module)
        for path, text in self._todo:  # the list grows during the loop
            inner = module_of(self._key(path))
            package = inner if path.name == "__init__.py" else inner.rpartition(".")[0]
            for node in ast.walk(ast.parse(text, str(path))):
                for name in self._imported(node, package):
                    self._keep(name)
        del self.texts[self._key(file)]
        self.names = {top: place for top, place in self._places.items() if place}

    def _imported(self, node: ast.AST, package: str) -> list[str]:
        """Return the user's modules, or names in them, that an import statement in this package imports."""
        if isinstance(node, ast.Import):
            return [own for alias in node.names if (own := self._own(alias.name))]
        if not isinstance(node, ast.ImportFrom):
            return []
        if node.level:
            outer = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*outer, node.module or ""]).strip(".")
        else:
            module = self._own(node.module or "")
        return [f"{module}.{alias.name}".strip(".") for alias in node.names if module or node.level]

    def _keep(self, module: str) -> None:
        """Add a module, if it is one of the user's, and the packages around it."""
        for end in range(module.count(".") + 1):
            file = file_of(self.folder, module.rsplit(".", end)[0])
            if file is not None and self._key(file) not in self.texts:
                self._add(file, file.read_text(encoding="utf-8"))

    def _add(self, file: Path, text: str) -> None:
        self.texts[self._key(file)] = text
        self._todo.append((file, text))

    def _key(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    def _own(self, name: str) -> str:
        """Return the user's module that an absolute import's name stands for; empty if it is another module."""
        top, _, rest = name.partition(".")
        if top not in self._places:
            self._places[top] = self._place(top)
        return f"{self._places[top]}.{rest}".rstrip(".") if self._places[top] else ""

    def _place(self, top: str) -> str:
        """Return the user's module that the first word of an import stands for; empty if there is none.

        It lies beside the outermost package or beside the module itself. As for a script, a file beside a module
        that is in no package takes precedence over other modules of the same name.
        """
        outermost, package = self.module.partition(".")[0], self.module.rpartition(".")[0]
        for name in dict.fromkeys((top, f"{package}.{top}".lstrip("."))):
            file, folder = file_of(self.folder, name), self.folder.joinpath(*name.split("."))
            if not (file or folder.is_dir()):
                continue
            first = top == outermost or (file is not None and not package)
            if first or not _elsewhere(top, file):
                return name
        return ""


def _elsewhere(top: str, file: Path | None) -> bool:
    """Tell whether `import` would find another module than the file, in no folder of other code of the user's."""
    try:
        spec = find_spec(top)
    except ValueError:  # such a module is loaded, but without a known place
        return True
    if spec is None or spec.origin in (None, str(file)):
        return False
    place = Path(str(spec.origin))
    return str((place.parent if place.name == "__init__.py" else place).parent) not in _folders


def load(root: str, folder: Path, module: str, texts: Mapping[str, str], names: Mapping[str, str]) -> ModuleType:
    """Run a module from the stored texts, once per process and root; raises the module's own errors."""
    if root not in sys.modules:
        top = ModuleType(root)
        top.__path__ = []
        sys.modules[root] = top
        sys.meta_path.insert(0, _Kept(root, folder, texts, names))
        # Modules imported by a text, as with `importlib`, are found in the folder, but after all others.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
            _folders.add(str(folder))
    return import_module(f"{root}.{module}")


class _Kept(MetaPathFinder, ExecutionLoader):
    """An importer that finds and runs the user's modules below a root."""

    def __init__(self, root: str, folder: Path, texts: Mapping[str, str], names: Mapping[str, str]) -> None:
        self.root = root
        self.folder = folder
        self.files = {f"{root}.{module_of(file)}": (str(folder / file), text) for file, text in texts.items()}
        self.builtins = vars(builtins) | {"__import__": _importing(root, names)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.files:
            return spec_from_loader(fullname, self)
        if any(name.startswith(f"{fullname}.") for name in self.files):  # a folder without `__init__`
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(self.folder.joinpath(*fullname.split(".")[1:]))]
            return spec
        return None

    def is_package(self, fullname: str) -> bool:
        return self.get_filename(fullname).endswith("/__init__.py")

    def get_filename(self, fullname: str) -> str:
        return self.files[fullname][0]

    def get_source(self, fullname: str) -> str:
        return self.files[fullname][1]

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self.builtins
        super().exec_module(module)


def _importing(root: str, names: Mapping[str, str]) -> Callable[..., Any]:
    """Return the `__import__` function of the user's modules, which finds their own modules below the root."""

    def importing(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        top, _, rest = name.partition(".")
        if level or top not in names:
            return builtins.__import__(name, globals, locals, fromlist, level)
        own = f"{root}.{names[top]}"
        module = builtins.__import__(f"{own}.{rest}".rstrip("."), globals, locals, fromlist or ("__name__",), 0)
        return module if fromlist else sys.modules[own]

    return importing
