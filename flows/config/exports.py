"""What a run is exported to: a tracker of experiments, a checkpoint file or a folder, told apart by its text."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from roundweave.storage.checkpoints.files import SUFFIXES
from roundweave.storage.errors import UsageError, near
from roundweave.storage.parsing import at_commas
from roundweave.storage.places.base import as_path

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""The packages that trackers need, by the tracker's name, which is the module's."""


def is_folder(to: str) -> bool:
    """Whether an export that goes to no tracker goes to a folder, or else to a file; raises `UsageError`."""
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


def _known(given: tuple[str, ...]) -> tuple[str, ...]:
    """Texts unchanged; raises `UsageError` for one to which nothing can be exported."""
    for to in given:
        _ = to in PACKAGES or is_folder(to)
    return given


Exports = Annotated[tuple[str, ...], BeforeValidator(at_commas), AfterValidator(_known)]
"""Folders, files and trackers, or a text of them at commas."""
