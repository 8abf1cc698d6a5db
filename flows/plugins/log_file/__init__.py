"""Appends a line of JSON to a file for each commit and event of trainings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from roundweave.flows.plugin import Plugin
from roundweave.storage.places.base import join_address

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig


class JsonLog(Plugin):
    """Appends one JSON object to a file for each commit and event."""

    log_file: Path | None = Field(
        default=None, description="file to which one JSON object is appended for each commit and event"
    )

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """Join the file to the folder."""
        return join_address(folder, value)

    @contextmanager
    def around(self, config: TrainConfig) -> Iterator[None]:
        """Log while the context is open; raises `UsageError` if nothing can be written."""
        from roundweave.flows.plugins.log_file.log import logged

        with logged(self.log_file, config.name):
            yield
