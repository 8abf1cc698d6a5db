"""What a configuration says of the deployment that trains it again and again; it decides no number of a run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from roundweave.flows.config.base import Config
from roundweave.storage.parsing import UNITS, at_commas, span_seconds


def _in_seconds(given: Any) -> Any:
    """The seconds of a text such as ``10m``; any other value unchanged. Raises `ValueError`."""
    return span_seconds(given) if isinstance(given, str) and given[-1:].isalpha() else given


Duration = Annotated[float, BeforeValidator(_in_seconds), Field(ge=0, le=366 * UNITS["d"])]
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
