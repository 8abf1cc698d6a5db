"""The facade: ``import roundweave as rw`` gives what a notebook and one's own code need, loaded at first use.

Its names, and where each is defined, stand in `roundweave.pyi`, once for the loader, types and completion.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names
}

__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"roundweave has no {name!r}; it has {', '.join(__all__)}")
    module = import_module(_HOMES[name])
    package = import_module(_HOMES[name].partition(".")[0])
    home = Path(package.__file__ or "").resolve().parent.parent
    if home != Path(__file__).resolve().parent:
        raise ImportError(
            f"{home / package.__name__} hides Roundweave's own {package.__name__}; rename or move it"
        )
    return getattr(module, name)
