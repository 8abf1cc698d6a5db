"""What modules define, as far as it decides what they do: not comments, layout, or how the parts are ordered."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping

from roundweave.storage.values.hashing import text_digest

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
    """The names that a statement binds."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign() | ast.AnnAssign():
            return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return []
