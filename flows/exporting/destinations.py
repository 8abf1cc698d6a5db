"""What an export may go to, and what of that is there already."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from roundweave.flows.config.exports import PACKAGES, is_folder
from roundweave.storage.checkpoints.writing import check_place
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import as_path

CARD = "README.md"
"""The file of the card in an exported folder."""

MARK = "<!-- written by roundweave export, which may replace this folder -->\n"
"""The first line of a card, by which the folder is known as one that an export wrote."""


def check_destination(to: str, replace: bool = True) -> None:
    """Raise `UsageError` if nothing can be exported there; an earlier export is replaced only with `replace`."""
    if to in PACKAGES:
        if find_spec(to) is None:
            raise UsageError(f"{PACKAGES[to]} is not installed; `pip install {PACKAGES[to]}`")
    elif is_folder(to):
        check_folder(to, replace)
    else:
        check_place(to, replace)


def check_folder(to: str, replace: bool = True) -> Path:
    """The path of a folder to write; raises `UsageError` where something lies that may not be replaced."""
    folder = as_path(to).resolve()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{to} is a file; give the folder another name")
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    card = folder / CARD
    if not card.is_file() or not card.read_bytes().startswith(MARK.encode()):
        raise UsageError(f"{to} holds what no export wrote; give another folder")
    if not replace:
        raise UsageError(f"{to} is there already; give another name, or --force to replace it")
    return folder
