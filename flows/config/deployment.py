"""What a configuration says of the deployment that trains it again and again; it decides no number of a run."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from roundweave.flows.config.base import Config
from roundweave.storage.errors import UsageError
from roundweave.storage.parsing import at_commas

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of a duration, in seconds."""


def _in_seconds(given: Any, info: ValidationInfo) -> Any:
    """The seconds of a text such as ``10m``; any other value unchanged. Raises `UsageError`."""
    if not isinstance(given, str):
        return given
    if (parts := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", given)) is None:
        raise UsageError(f"{info.field_name} = {given!r} is no time; give seconds, or such as 90s, 10m, 2h, 1d")
    return float(parts[1]) * SECONDS[parts[2]]


Duration = Annotated[float, BeforeValidator(_in_seconds), Field(ge=0, le=366 * SECONDS["d"])]
"""Seconds, or a text with a unit such as ``10m`` or ``2h``; a year at most."""


class Deployment(Config):
    """How `serve` and `deploy` have a run trained. `train` and `resume` try once, however long it takes."""

    retries: int = Field(
        default=0, ge=0, le=1000, description="how often a deployment's run that failed goes on by itself"
    )
    retry_delay: Duration = Field(default=0, description="seconds until then, or such as 10m")
    timeout: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="seconds, or such as 2h, after which an attempt of a deployment's run fails"
    )
    tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(at_commas)] = Field(
        default=(), description="tags of the deployment and of its runs at Prefect"
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="runs of a deployment at once; default: one where it is served, else any"
    )
