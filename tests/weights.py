"""How much code each kind of the project has, and what the kernel imports: budgets that only fall.

`python -m tests.weights` compares with `weights.toml` beside this file; `make lint` runs it. What grew fails. What
shrank is said, so that the budget is lowered with it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("weights.toml")
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of(text: str) -> int:
    """How many lines of a module hold code: neither docstrings nor comments nor blank lines."""
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in SKIPPED]
    lines = {line for each in tokens for line in range(each.start[0], each.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def kind_of(path: Path, kinds: dict[str, list[str]]) -> str:
    """What a file is: of a plugin, of a kind that names the file or a folder above it, or an implementation."""
    if "plugins" in path.parts[:-2]:
        return f"plugin {path.parts[path.parts.index('plugins') + 1]}"
    above = {f"{each}" for each in (path, *path.parents)}
    return next((kind for kind, places in kinds.items() if above & {*places}), "implementations")


def imported(text: str) -> set[str]:
    """The modules of this package that a module imports, as paths without their suffix."""
    nodes = ast.walk(ast.parse(text))
    names = {each.module for each in nodes if isinstance(each, ast.ImportFrom) and each.module}
    return {name.removeprefix("roundweave.").replace(".", "/") for name in names if name.startswith("roundweave.")}


def weigh() -> Counter[str]:
    """The lines of each kind, the files of the kernel, and the imports by which it leans on other kinds."""
    kinds = tomllib.loads(BUDGETS.read_text("utf-8"))["kinds"]
    files = [file for top in ("flows", "tasks", "storage") for file in (HERE / top).rglob("*.py")]
    texts = {file.relative_to(HERE): file.read_text("utf-8") for file in files}
    found = {path: kind_of(path, kinds) for path in texts}
    weights = Counter[str]()
    for path, text in texts.items():
        weights[found[path]] += lines_of(text)
        weights["in all"] += lines_of(text)
        if found[path] == "kernel":
            weights["files of the kernel"] += path.name != "__init__.py"
            leans = {found.get(Path(f"{name}.py"), "kernel") for name in imported(text)} - {"kernel"}
            weights["imports of the kernel from other kinds"] += len(leans)
    return weights


def main() -> None:
    """Print what weighs more than its budget, or less; exit with 1 for more."""
    budgets, weights = tomllib.loads(BUDGETS.read_text("utf-8"))["budgets"], weigh()
    more = {kind: weight for kind, weight in weights.items() if weight > budgets.get(kind, 0)}
    less = {kind: budget for kind, budget in budgets.items() if weights[kind] < budget}
    for kind, weight in more.items():
        print(
            f"{kind}: {weight}, more than the {budgets.get(kind, 0)} of {BUDGETS.name}; look for the simpler form"
        )
    for kind in less:
        print(f'lower the budget: "{kind}" = {weights[kind]}')
    sys.exit(bool(more))


if __name__ == "__main__":
    main()
