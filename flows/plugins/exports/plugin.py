"""Exports the last round of a run that has ended, and was not rejected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from roundweave.flows.plugins.base import Plugin
from roundweave.flows.plugins.exports.places import Exports, check_export, joined
from roundweave.storage.parsing import at_commas

if TYPE_CHECKING:
    from roundweave.flows.config.composed import TrainConfig
    from roundweave.flows.stored import Run


class Export(Plugin):
    """Exports the last round of a run that has ended, and was not rejected."""

    export: Exports = Field(
        default=(),
        description="where the last round goes if the run is accepted: folders, files and trackers, such as "
        "nightly/{date}, mlflow",
    )

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """Join folders and files to the folder."""
        return [joined(folder, to.strip()) if isinstance(to, str) else to for to in at_commas(value)]

    def configure(self, config: TrainConfig) -> TrainConfig:
        """Refuse what cannot be exported to, while nothing is trained."""
        for to in self.export:
            check_export(to)
        return config

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Export the last round."""
        if error is None and run.status != "rejected":
            from roundweave.flows.plugins.exports.delivering import deliver

            deliver(run, self.export)
