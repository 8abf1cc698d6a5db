"""Trains a configuration again and again: dated names, and what to do where nothing is new."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field

from roundweave.flows.config.base import Skipped, checked_by
from roundweave.flows.plugin import Plugin
from roundweave.flows.plugins.scheduled.dates import DAY, dated, dates_of, is_dated, moment
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import ExperimentDiffers, Rejected, RunBusy, nearest

if TYPE_CHECKING:
    from roundweave.flows.composed import TrainConfig
    from roundweave.flows.planning.plan import Plan
    from roundweave.flows.stored import Run
    from roundweave.storage.runs.run import StoredRun


def _check_timezone(name: str) -> None:
    """Raise `ValueError` for a name that no time zone has."""
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        regions = (zone for zone in available_timezones() if "/" in zone)
        hint = nearest(name, regions, "give one such as Europe/Berlin")
        raise ValueError(f"{name!r} is no time zone; {hint}") from error


Skips = Annotated[bool | Literal["skip"] | None, AfterValidator(bool)]
"""A switch, which is also turned on by the word skip."""


class Scheduled(Plugin):
    """Trains a configuration on a schedule: dated names, and rules for complete, busy or unchanged runs."""

    on_complete: Literal["new", "extend", "skip"] | None = Field(
        default=None,
        description="if the run is complete: new (begin a dated run), extend (more rounds), skip (do nothing)",
        json_schema_extra={"flags": ["train", "plan"]},
    )
    timezone: Annotated[str, checked_by(_check_timezone)] | None = Field(
        default=None,
        description="time zone of {date} and of schedules, such as Europe/Berlin; default: this machine's",
        json_schema_extra={"flags": ["train", "plan"]},
    )
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$"), checked_by(datetime.fromisoformat)] | None = Field(
        default=None,
        description="the day that {date} stands for, such as 2031-02-24, to repeat a missed scheduled run",
        json_schema_extra={"recorded": False, "flags": ["train", "plan"]},
    )
    on_unchanged: Skips = Field(
        default=False, description="skip: do not train if the run in start_from had the same examples"
    )
    on_busy: Skips = Field(
        default=False, description="skip: end without an error if another process trains this run"
    )

    on_rejected: Literal["keep", "fail"] | None = Field(
        default=None, description="if the run is rejected: keep (end without an error), fail (raise an error)"
    )

    @classmethod
    def takes_part(cls, config: TrainConfig) -> bool:
        """Where one of its options is given, or a text has a date."""
        return super().takes_part(config) or any(map(is_dated, dates_of(config).values()))

    def fits(self, config: TrainConfig) -> None:
        """Refuse what is about runs of a name, or of another run, where there is none."""
        if self.on_complete and not config.name:
            raise ValueError(f"on_complete = {self.on_complete} needs the name of a run; give name, too")
        if self.on_unchanged and "start_from" not in config.model_fields_set:  # the first night has None
            raise ValueError("on_unchanged compares with the run of start_from; give start_from, too")

    def configure(self, config: TrainConfig) -> TrainConfig:
        """Put days in place of dates."""
        made: TrainConfig = dated(config)
        return made

    def found(self, config: TrainConfig, run: StoredRun | None) -> TrainConfig:
        """Do what `on_complete` says where there is a run of this name."""
        if run is not None and self.on_complete and not config.address:
            whole = run.status in ("complete", "rejected")
            if whole and self.on_complete == "skip":
                text = f"{run.name} is {run.status}, {run.done} rounds; skipped, as on_complete says"
                raise Skipped(text, run.address)
            if whole and self.on_complete == "new":
                return config.model_copy(update={"name": _following(config, run.name)})
            if self.on_complete == "extend":
                rounds = run.rounds + (config.rounds if whole else 0)
                config = config.model_copy(update={"rounds": rounds})
        return config.model_copy(update={"on_complete": None})

    def past(self, config: TrainConfig, error: ExperimentDiffers) -> TrainConfig | None:
        """The same with the next name, where `on_complete` = new."""
        if self.on_complete != "new" or not error.run:
            return None
        following = _following(config, error.run)
        what, _, _ = str(error).rpartition("; ")  # its advice is followed already
        notice(f"{what}; {following} begins instead, as on_complete says")
        return config.model_copy(update={"name": following})

    def plan(self, plan: Plan) -> Plan:
        """Have a new run's examples compared with those of the run that it begins with."""
        if not (self.on_unchanged and plan.new):
            return plan
        from roundweave.flows.plugins.scheduled.unchanged import check_changed

        return plan.add(checks=check_changed)

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Skip the training where another process writes the run, or fail where it is rejected, by the options."""
        if error is None and self.on_rejected == "fail" and run.status == "rejected":
            why = "; ".join(run.judgement.reasons if run.judgement else ())
            raise Rejected(f"{run.name} is rejected: {why}; the run stays in the store")
        if isinstance(error, RunBusy) and self.on_busy:
            raise Skipped(f"{error}; skipped, as on_busy says", run.address) from error


def _following(config: Any, name: str) -> str:
    """The name after this one: that of ``NAME`` has today's date, and then a number from 2 on."""
    today = moment(config).strftime(DAY)
    numbered = re.fullmatch(rf"(.*{today})(?:-(\d+))?", name)
    return f"{numbered[1]}-{int(numbered[2] or 1) + 1}" if numbered else f"{name}-{today}"
