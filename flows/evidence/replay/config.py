"""The configuration of a replay: the flow's parameter and the command's options in one definition."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from flows.config.fields import EachOwn, NamedOrOwn
from flows.config.problems import Config
from flows.config.train import Placement


class Replaying(Config):
    """Which examples a replay uses."""

    data: NamedOrOwn | EachOwn | None = Field(
        default=None, description="where the same examples lie now; default: as recorded"
    )


class ReplayConfig(Replaying, Placement):
    """All there is to say about a replay; nothing of a run's recorded execution is used."""

    run: str = Field(description="the run's name, or its address")
    rounds: tuple[int, ...] | Literal["last", "all"] = Field(
        default="last", description="numbers of rounds, negative ones from the end; all, or the last one"
    )
    sample: int | None = Field(default=None, ge=1, description="so many rounds, evenly spread, the last one too")
    trust: bool = Field(default=False, description="run the code kept in a store outside the root")

    @model_validator(mode="after")
    def _one_choice(self) -> ReplayConfig:
        if self.sample is not None and self.rounds != "last":
            raise ValueError("choose rounds, all of them or a sample: one of the three")
        return self
