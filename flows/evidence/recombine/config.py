"""The configuration of rounds that are reduced again: the flow's parameter and the command's options."""

from __future__ import annotations

from pydantic import Field, model_validator

from flows.config.fields import EachOwn, Integers, NamedOrOwn
from flows.config.parts import Parts
from flows.config.train import Placement
from storage.runs.names import WhichRound


class RecombineConfig(Parts, Placement):
    """All there is to say about reducing stored rounds again; `name` is that of a new run to keep one in."""

    run: str = Field(description="the run's name, or its address")
    round: WhichRound | None = Field(
        default=None, description="a round's number, last or best; default: each on its own"
    )
    without: Integers = Field(default=(), description="partitions whose updates are left out, as 3,7")
    data: NamedOrOwn | EachOwn | None = Field(
        default=None, description="another place of the same examples; default: where they were"
    )
    trust: bool = Field(default=False, description="run the code kept in a store outside the root")

    @model_validator(mode="after")
    def _one_is_kept(self) -> RecombineConfig:
        if self.name is not None and self.round is None:
            raise ValueError("one round can be kept as a run, since each is reduced on its own; say which")
        return self
