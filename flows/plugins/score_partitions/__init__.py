"""Scores each partition on examples that it holds out for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from roundweave.flows.plugin import Plugin

if TYPE_CHECKING:
    from roundweave.flows.config.experiment import Dealing
    from roundweave.flows.planning.plan import Plan
    from roundweave.storage.runs.run import StoredRun
    from roundweave.tasks.data.partitions import Partitions


class ScorePartitions(Plugin):
    """Scores each partition on held-out examples of the partition."""

    decides = True

    score_partitions: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="fraction of each partition's examples, such as 0.1, held out to score its own network, or "
        "else the common one",
    )

    def deal(self, partitions: Partitions, config: Dealing) -> Partitions:
        """Hold the share out of what each partition trains on."""
        return replace(partitions, own_held_out=self.score_partitions or 0.0)

    def plan(self, plan: Plan) -> Plan:
        """Add the scorer."""
        from roundweave.flows.plugins.score_partitions.scorer import OwnExamples

        return plan.add(scorers=OwnExamples())

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """Whose network is scored."""
        from roundweave.tasks.algorithms.algebra import own_slots

        if not run.config.get("score_partitions"):
            return {}
        own = own_slots(run.attributes["schema"]["carry"]) if run.round(-1).commit.server is None else []
        carried = f"of each partition's own network, carried as {', '.join(own)}"
        return {"own scores": carried if own else "of the network that all share"}
