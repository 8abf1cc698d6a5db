"""The facade: ``import roundweave as rw`` gives what a notebook and one's own code need, loaded at first use.

Its names, and where each is defined, stand in `roundweave.pyi`, once for the loader, types and completion. The
packages beside it have common names, and are found before others that are called so.
"""

import ast
import signal
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

_HOME = Path(__file__).resolve().parent
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names
}

__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what Python asks of each module that is imported
        raise AttributeError(f"roundweave has no {name!r}")
    if name not in _HOMES:
        from storage.runs.names import nearest

        there = f"it has {', '.join(__all__)}"
        raise AttributeError(
            f"roundweave has no {name!r}; {there}; {nearest(name, __all__, 'see roundweave.pyi')}"
        )
    return getattr(import_module(_HOMES[name]), name)


def main() -> None:
    """The `roundweave` command."""
    if sys.platform == "win32":
        sys.exit("error: Roundweave does not run on Windows; use its subsystem for Linux (WSL)")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command can say that it was interrupted
    import_module("flows.command.app").main()


def _take(package: str) -> None:
    """Import a package of this installation, whatever else is called so; raises `ImportError` once that is."""
    taken = sys.modules.get(package)
    if taken is None:
        spec = PathFinder.find_spec(package, [str(_HOME)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    elif Path(where := taken.__file__ or next(iter(taken.__path__))).resolve() != _HOME / package / "__init__.py":
        raise ImportError(f"{where} hides Roundweave's own {package}; rename or move it")


for _package in ("storage", "tasks", "flows"):
    _take(_package)
