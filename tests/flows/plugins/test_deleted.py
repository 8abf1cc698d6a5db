"""Each plugin's folder can be deleted: the rest trains to the same bits, and names no option of a plugin."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundweave.flows.config.plugins import plugin_classes
from roundweave.flows.plugins import PLUGINS

HERE = Path(__file__).parents[3]
COPIED = ("flows", "tasks", "storage", "roundweave", "tests", "pyproject.toml")
TRAINED = """
import roundweave as rw
run = rw.train(rw.TrainConfig(executor="inline", rounds=2, name="plain"), bar=False)
assert run.replay("all").identical and run.verify().sound
print(run.digest)
"""
COMMANDS = ("show plain", "replay plain", "list", "runs", "--help", "train --help", "resume plain --rounds 3")
KERNEL = ("tests/contracts", "tests/storage/values", "tests/tasks/rounds/test_folds.py", "tests/tasks/algorithms")
PLAIN = {"schedule", "order", "export", "planned", "patience", "drift", "device", "units", "ranks", "stacked"}
PLAIN |= {"reference"}
"""Options whose names are plain words, too."""
OTHERS = {
    "tasks/process_group/peers.py": {"accept"},
    "tasks/data/reading.py": {"cohort"},
    "tasks/networks/objective.py": {"precision", "compiled"},
}
"""Of a socket, what the user's code is told, and what a mapper sets of an objective."""


def copied(folder: Path, without: str = "") -> Path:
    """A copy of the project, without a plugin and its tests."""
    for name in COPIED:
        copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
        how = {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if (HERE / name).is_dir() else {}
        copy(HERE / name, folder / name, **how)  # type: ignore[operator]
    for home in ("flows", "tests/flows") if without else ():
        shutil.rmtree(folder / home / "plugins" / without, ignore_errors=True)
    return folder


def ran(folder: Path, *words: str, without: str = "") -> str:
    """What a Python process of a copy prints; it must end well."""
    env = os.environ | {"PYTHONPATH": str(folder), "ROUNDWEAVE_ROOT": str(folder / "runs"), "WITHOUT": without}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a plain run where no plugin is deleted."""
    return ran(copied(tmp_path_factory.mktemp("whole")), "-c", TRAINED)


@pytest.mark.parametrize("gone", PLUGINS)
@pytest.mark.thorough
def test_without_a_plugin_all_else_is_as_before(gone: str, plain: str, tmp_path: Path) -> None:
    copy = copied(tmp_path, without=gone)
    assert ran(copy, "-c", TRAINED) == plain
    main = "import sys, roundweave; sys.argv[0] = 'roundweave'; roundweave.main()"
    for command in COMMANDS:
        ran(copy, "-c", main, *command.split())
    (plugin,) = (each for each in plugin_classes() if each.__module__.endswith(f".{gone}"))
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.flows.plugins.without",
        "-m",
        "not slow and not thorough",
    ]
    ran(copy, "-m", "pytest", *words, *KERNEL, without=" ".join(plugin.model_fields))


def words(path: Path) -> Iterator[str]:
    """The names, and the texts that are single words, in a file's code."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for field in ("id", "attr", "arg", "value"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


def knowing(root: Path) -> dict[str, set[str]]:
    """The files outside of plugins that name an option of a plugin of ours."""
    options = {name for plugin in plugin_classes() for name in plugin.model_fields} - PLAIN
    files = [each for top in ("flows", "tasks", "storage") for each in (root / top).rglob("*.py")]
    outside = [each for each in files if "plugins" not in each.relative_to(root).parts]
    found = {str(each.relative_to(root)): options & {*words(each)} for each in outside}
    return {file: names for file, names in found.items() if names - OTHERS.get(file, set())}


def test_no_file_outside_of_plugins_names_an_option_of_one() -> None:
    assert knowing(HERE) == {}


@pytest.mark.parametrize("option", ["target_accuracy", "accept", "on_busy", "log_file"])
def test_an_option_that_is_put_back_as_a_field_is_found(option: str, tmp_path: Path) -> None:
    for top in ("flows", "tasks", "storage"):
        (tmp_path / top).mkdir()
    (tmp_path / "flows/train.py").write_text(f"class Execution:\n    {option}: int = 0\n")
    assert knowing(tmp_path) == {"flows/train.py": {option}}
