"""The user's own modules: which of them a file imports, and importing them from their kept texts alone.

In a process their names begin with a root that is made for the code they belong to. So they neither hide other
modules nor are hidden, whatever they are called, and need no file.
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
OUR_FACADE = Path(__file__).resolve().parents[1] / "roundweave.py"
OUR_PACKAGES = {OUR_FACADE.with_name(name) for name in ("flows", "tasks", "storage")}


def file_of(folder: Path, module: str) -> Path | None:
    """The file of a module below a folder."""
    place = folder.joinpath(*module.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def module_of(file: str) -> str:
    """The module of a file, whose path goes from the folder of the outermost package."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def called(path: Path, source: str, name: str = "") -> str:
    """The module that a file is: by a name that fits, else as deep as `__init__` or its relative imports tell."""
    package = path.name == "__init__.py"
    parts = (path.parent if package else path.with_suffix("")).parts
    if name and parts[-name.count(".") - 1 :] == tuple(name.split(".")):
        return name
    least = max((n.level for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)), default=0)
    depth, folder = 0, path.parent
    while (depth < least or (folder / "__init__.py").is_file()) and folder.name and "." not in folder.name:
        depth, folder = depth + 1, folder.parent
    return ".".join(parts[len(parts) - max(depth + (not package), 1) :])


def is_library(path: Path) -> bool:
    """Whether a file is of an installed package, which is imported as it is."""
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or path.is_relative_to(sysconfig.get_path("stdlib")) or _is_ours(path)


def _is_ours(path: Path) -> bool:
    return path == OUR_FACADE or not OUR_PACKAGES.isdisjoint(path.parents)


class Imports:
    """What a module imports of the user's modules, directly or through one another.

    `texts` has the text of each by its path from the folder of the outermost package. `names` says of the first
    word of an imported name which of these modules it is. Raises `SyntaxError`.
    """

    def __init__(self, folder: Path, module: str, source: str) -> None:
        self.folder = folder
        self.module = module
        self.texts: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._todo: list[tuple[Path, str]] = []
        file = file_of(folder, module)
        assert file is not None
        self._add(file, source)
        self._keep(module)
        for path, text in self._todo:  # it grows meanwhile
            inner = module_of(self._key(path))
            package = inner if path.name == "__init__.py" else inner.rpartition(".")[0]
            for node in ast.walk(ast.parse(text, str(path))):
                for name in self._imported(node, package):
                    self._keep(name)
        del self.texts[self._key(file)]
        self.names = {top: place for top, place in self._places.items() if place}

    def _imported(self, node: ast.AST, package: str) -> list[str]:
        """The user's modules that an import in a package brings, or names that it brings of them."""
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
        """Keep a module that is there, and the packages that it is in."""
        for end in range(module.count(".") + 1):
            file = file_of(self.folder, module.rsplit(".", end)[0])
            if file is not None and self._key(file) not in self.texts and not _is_ours(file):
                self._add(file, file.read_text(encoding="utf-8"))

    def _add(self, file: Path, text: str) -> None:
        self.texts[self._key(file)] = text
        self._todo.append((file, text))

    def _key(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    def _own(self, name: str) -> str:
        """The user's module that a name of an absolute import is, or nothing."""
        top, _, rest = name.partition(".")
        if top not in self._places:
            self._places[top] = self._place(top)
        return f"{self._places[top]}.{rest}".rstrip(".") if self._places[top] else ""

    def _place(self, top: str) -> str:
        """Which of the user's modules a word is: beside the outermost package, or beside the module itself.

        A file beside one that is in no package comes before whatever else is called so, as beside a script.
        """
        outermost, package = self.module.partition(".")[0], self.module.rpartition(".")[0]
        for name in dict.fromkeys((top, f"{package}.{top}".lstrip("."))):
            file, folder = file_of(self.folder, name), self.folder.joinpath(*name.split("."))
            if (file and _is_ours(file)) or not (file or folder.is_dir()):
                continue
            first = top == outermost or (file is not None and not package)
            if first or not _elsewhere(top, file):
                return name
        return ""


def _elsewhere(top: str, file: Path | None) -> bool:
    """Whether `import` would find another module of that name than the file, and not one of our packages."""
    try:
        spec = find_spec(top)
    except ValueError:  # it is loaded and does not say from where
        return True
    if spec is None or spec.origin is None:
        return False
    return spec.origin != str(file) and Path(spec.origin).parent not in OUR_PACKAGES


def load(root: str, folder: Path, module: str, texts: Mapping[str, str], names: Mapping[str, str]) -> ModuleType:
    """A module run from the kept texts, once per process and root; raises what it raises."""
    if root not in sys.modules:
        top = ModuleType(root)
        top.__path__ = []
        sys.modules[root] = top
        sys.meta_path.insert(0, _Kept(root, folder, texts, names))
        # What is imported by a text, as `importlib` does, is found after all else.
        sys.path += [str(folder)] * (str(folder) not in sys.path)
    return import_module(f"{root}.{module}")


class _Kept(MetaPathFinder, ExecutionLoader):
    """Finds and runs the modules below a root."""

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
    """The `__import__` of the user's modules, which finds theirs below the root."""

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
