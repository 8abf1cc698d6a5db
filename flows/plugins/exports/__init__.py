"""Exports the network of a run that has ended, and was not rejected; with an alias, the champion's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from roundweave.flows.config.base import checked_by
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError, near
from roundweave.storage.parsing import at_commas
from roundweave.storage.places.base import as_path, scheme_of
from roundweave.storage.runs.names import holder_of, holding_of

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.stored import Run


PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""The packages that trackers need, by the tracker's name, which is the module's."""


def goes_to_folder(to: str) -> bool:
    """Whether an export that goes to no tracker goes to a folder, or else to a file; raises `UsageError`."""
    from roundweave.storage.checkpoints.writing import is_folder  # slow to import, and most runs export nothing

    folder = is_folder(to)
    if folder and "/" not in to and not as_path(to).is_dir() and (close := near(to, PACKAGES)):
        raise UsageError(f"{to} is no tracker; did you mean {close[0]}? A folder of that name is {to}/")
    return folder


Known = Annotated[str, checked_by(lambda to: to in PACKAGES or goes_to_folder(to))]
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
        return
    from roundweave.storage.checkpoints.writing import check_folder, check_place  # slow to import

    (check_folder if goes_to_folder(to) else check_place)(to, replace)


class Export(Plugin):
    """Exports the network of a finished and accepted run, or of the holder of an alias."""

    export: Exports = Field(
        default=(),
        description="folders, files or trackers for accepted runs, such as nightly/{date},mlflow; with promote, "
        "for the alias holder",
    )

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """Join folders and files to the folder."""
        return [joined(folder, to.strip()) if isinstance(to, str) else to for to in at_commas(value)]

    def configure(self, config: TrainConfig) -> TrainConfig:
        """Refuse what cannot be exported to, while nothing is trained; the record has whole paths."""
        for to in self.export:
            check_export(to)
        return config.model_copy(update={"export": tuple(joined(Path.cwd(), to) for to in config.export)})

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Export what the run hands out. Where it may take an alias, folders and files go to who has the alias.

        So do folders that a process which was killed left behind with an earlier one.
        """
        if error is not None:
            return
        from roundweave.flows.plugins.exports.delivering import deliver, deliver_champion, is_behind

        alias = run.config.get("promote")
        holding = holding_of(run.root, alias) if alias else None
        if alias and holding and (holding.run, holding.chain) == (run.name, run.result.chain):
            deliver_champion(run.root, alias, self.export)
            return
        if run.status != "rejected":
            deliver(run, run.result, self.export, challenges=alias)
        if alias and (behind := tuple(to for to in self.export if is_behind(to, holding))):
            deliver_champion(run.root, alias, behind)

    def promoted(self, run: Run, alias: str) -> None:
        """Export who has the alias that the run goes by, or say what still has the run where nobody has it."""
        from roundweave.flows.plugins.exports.delivering import deliver_champion, take_back

        if alias != run.config.get("promote"):
            return
        if holder_of(run.root, alias):
            deliver_champion(run.root, alias, self.export)
        else:
            take_back(run, self.export, alias)
