"""Ends training early: at a target, or where scores are no longer better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from roundweave.flows.plugin import Plugin

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan


class EarlyStopping(Plugin):
    """Stops training early: at a target accuracy, or after scores stop improving."""

    target_accuracy: float | None = Field(default=None, gt=0, le=1, description="stop at this accuracy (0 to 1)")
    patience: int | None = Field(default=None, ge=1, description="stop after this many scores without improvement")

    def plan(self, plan: Plan) -> Plan:
        """Add the rules to those by which a commit may be the last, which whoever commits asks."""
        from roundweave.flows.plugins.early_stopping.rule import Rule

        rule = Rule(self.target_accuracy, self.patience, plan.config.best or "loss")
        return plan.add(stops=rule, needs_scores="patience" if self.target_accuracy is None else "target_accuracy")
