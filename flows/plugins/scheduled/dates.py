"""Dates in configurations: `{date}`, `{date-1}` and `{date:%Y/%m/%d}` stand for the day of the training."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from roundweave.storage.errors import UsageError

DATE = r"\{date([+-]\d{1,4})?(:[^{}]+)?\}"
"""Matches what stands for the day that a run is trained, such as ``{date}``, ``{date-1}`` or ``{date:%Y-%m}``."""

DAY = "%Y%m%d"
"""The form of a day that names none."""

DATED = ("name", "data", "start_from", "data_options", "model_options", "partition_options", "export")
"""The fields whose texts may have dates."""


def dated(config: Any, due: datetime | None = None) -> Any:
    """The configuration with the days that its texts stand for, in its time zone.

    `due` is the moment at which it was to be trained; see `moment`. Raises `UsageError` for
    what is no date, and for a day that is given though nothing goes by it.
    """
    day = moment(config, due)
    filled = {name: _filled(value, day) for name, value in dates_of(config).items() if is_dated(value)}
    if config.date and not filled and config.on_complete != "new":
        raise UsageError(f"date = {config.date} has no effect: nothing in the configuration has {{date}}")
    if getattr(config, "retain", None) and config.name and not config.schedule:
        filled["schedule"] = names_of_runs(config)
    if "algorithm" in filled:
        filled["algorithm"] = config.algorithm.model_copy(update=filled["algorithm"])
    return config.model_copy(update=filled)


def dates_of(config: Any) -> dict[str, Any]:
    """The values of the fields whose texts may have dates, by name."""
    return {name: getattr(config, name, None) for name in DATED} | {"algorithm": config.algorithm.model_extra}


def moment(config: Any, due: datetime | None = None) -> datetime:
    """When it was due, or else now, by the clock of the configuration's time zone or else this machine's.

    A flow run that began late, or is tried again, is of the day on which it was scheduled; a `date` that is given
    comes before all.
    """
    prefect: Any = sys.modules.get("prefect.context")
    context = prefect and prefect.FlowRunContext.get()
    due = context.flow_run.expected_start_time if context and context.flow_run and not due else due
    zone = ZoneInfo(config.timezone) if config.timezone else None
    if config.date:
        return datetime.fromisoformat(config.date).replace(tzinfo=zone)
    return datetime.fromtimestamp(due.timestamp() if due else time.time(), zone)


def is_dated(value: Any) -> bool:
    """Whether a text, or one among nested values, has a date."""
    if isinstance(value, dict | list | tuple):
        return any(map(is_dated, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "{date" in value


def names_of_runs(config: Any) -> str:
    """A regular expression of all names that a configuration gives to its runs, from night to night."""
    pattern, last = "", 0
    for date in re.finditer(DATE, name := config.name or ""):
        pattern += re.escape(name[last : date.start()]) + (r"[\d._-]+" if date[2] else r"\d{8}")
        last = date.end()
    following = r"(-\d{8})?(-\d+)?" if config.on_complete == "new" else ""
    return pattern + re.escape(name[last:]) + following


def _filled(value: Any, day: datetime) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, day) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(inner, day) for inner in value)
    if not isinstance(value, str):
        return value
    text = re.sub(DATE, lambda date: _shown(day, *date.groups()), value)
    if is_dated(text):
        raise UsageError(f"{value!r} has no date of a known form; give {{date}}, {{date-1}} or {{date:%Y/%m/%d}}")
    return text


def _shown(day: datetime, days: str | None, form: str | None) -> str:
    return (day.replace(tzinfo=None) + timedelta(days=int(days or 0))).strftime((form or DAY).removeprefix(":"))
