"""Removes older runs of a schedule once a run has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from roundweave.flows.config.base import checked_by
from roundweave.flows.plugin import Plugin
from roundweave.storage.parsing import span_seconds

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.stored import Run


class Retention(Plugin):
    """Deletes old runs of a schedule after a run has ended."""

    retain: Annotated[str, checked_by(span_seconds)] | None = Field(
        default=None,
        description="age, such as 12h, 14d or 2w; a dated run that ends removes older runs of its schedule",
    )
    schedule: str | None = Field(
        default=None,
        description="regular expression for the names of a schedule's runs; default: derived from the name",
        json_schema_extra={"recorded": False, "flags": []},
    )

    def fits(self, config: TrainConfig) -> None:
        """Refuse a run whose name says nothing of earlier ones."""
        dated = "{date" in (config.name or "") or getattr(config, "on_complete", None) == "new"
        if self.retain and not (dated or self.schedule or config.address):
            raise ValueError("retain needs scheduled runs; give a name with {date}, or on_complete = new")

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Remove the older runs."""
        if error is None and self.retain:
            from roundweave.flows.plugins.retention.retaining import remove_older

            remove_older(run, self.retain, self.schedule or "")
