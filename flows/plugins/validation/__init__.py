"""Scores each round on further examples, which are the same in all runs and never trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from roundweave.flows.config.base import DATA, NamedOrOwn
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan


class Validation(Plugin):
    """Scores each round on validation data, which is never trained on."""

    decides = True

    validation: Annotated[NamedOrOwn | None, DATA] = Field(
        default=None, description="validation data, such as csv:FILE: scored after rounds, never trained on"
    )

    def plan(self, plan: Plan) -> Plan:
        """Add the scorer of the examples."""
        from roundweave.flows.planning.completing import scored_alone
        from roundweave.flows.plugins.validation.scorer import Validated

        assert self.validation is not None
        if plan.placement.stays:
            raise UsageError("validation is read by every worker, and sites share no data; leave validation out")
        data = scored_alone(plan.config, self.validation)
        if data.source.partitioned:
            raise UsageError("validation is one data set for all partitions; give a function without arguments")
        return plan.add(scorers=Validated(data))
