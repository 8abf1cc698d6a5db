"""What a run is exported to: a tracker of experiments, a checkpoint file or a folder, told apart by its text."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from roundweave.flows.config.base import checked_by
from roundweave.storage.errors import UsageError, near
from roundweave.storage.parsing import at_commas
from roundweave.storage.places.base import as_path, scheme_of

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""The packages that trackers need, by the tracker's name, which is the module's."""

CARD = "README.md"
"""The file of the card in an exported folder."""

MARK = "<!-- written by roundweave export, which may replace this folder -->"
"""The first line of a card, by which the folder is known as one that an export wrote."""


def is_folder(to: str) -> bool:
    """Whether an export that goes to no tracker goes to a folder, or else to a file; raises `UsageError`."""
    from roundweave.storage.checkpoints.files import SUFFIXES  # slow to import, and most runs export nothing

    path = as_path(to)
    if not to.strip():
        raise UsageError(f"an export to {to!r} goes nowhere; give a folder, a file or a tracker")
    if to.endswith("/") or path.is_dir():
        return True
    if path.suffix.lower() in SUFFIXES:
        return False
    if path.suffix:
        known = f"a checkpoint ends in {', '.join(SUFFIXES)}, not in {path.suffix!r}"
        raise UsageError(f"{to}: {known}; a folder whose name has a dot ends in /")
    if "/" not in to and (close := near(to, PACKAGES)):
        raise UsageError(f"{to} is no tracker; did you mean {close[0]}? A folder of that name is {to}/")
    return True


Known = Annotated[str, checked_by(lambda to: to in PACKAGES or is_folder(to))]
Exports = Annotated[tuple[Known, ...], BeforeValidator(at_commas)]
"""Folders, files and trackers, or a text of them at commas."""


def joined(folder: Path, to: str) -> str:
    """Join a folder or a file of an export to a folder, with the slash at its end; trackers are unchanged."""
    elsewhere = not to or to in PACKAGES or scheme_of(to) or Path(to).is_absolute()
    return to if elsewhere else f"{folder}/{to}"


def not_installed(package: str) -> UsageError:
    """The error for a package that is needed and is not there."""
    return UsageError(f"{package} is not installed; `pip install {package}`")


def check_export(to: str, replace: bool = True) -> None:
    """Raise `UsageError` if nothing can be exported there; an earlier export is replaced only with `replace`."""
    if to in PACKAGES:
        if find_spec(to) is None:
            raise not_installed(PACKAGES[to])
    elif is_folder(to):
        check_folder(to, replace)
    else:
        from roundweave.storage.checkpoints.writing import check_place  # slow to import

        check_place(to, replace)


def check_folder(to: str, replace: bool = True) -> Path:
    """The path of a folder to write; raises `UsageError` where something lies that may not be replaced."""
    folder = as_path(to).resolve()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{to} is a file; give the folder another name")
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    if not (folder / CARD).is_file() or not (folder / CARD).read_bytes().startswith(MARK.encode()):
        raise UsageError(f"{to} holds what no export wrote; give another folder")
    if not replace:
        raise UsageError(f"{to} is there already; give another name, or --force to replace it")
    return folder
