"""Networks of partitions' own are averaged with those of their neighbours, without a common one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from roundweave.flows.config.base import read_values
from roundweave.flows.plugin import Plugin
from roundweave.storage.errors import UsageError
from roundweave.tasks.algorithms.algebra import OWN
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.own_code.tables import Entry, Table, make, spelled

if TYPE_CHECKING:
    from roundweave.flows.planning.plan import Plan
    from roundweave.flows.plugins.topology.graphs import Topology
    from roundweave.storage.runs.run import StoredRun

ALGORITHM = "d_psgd"
"""The algorithm where none is named beside a topology."""

GRAPHS = f"{__name__}.graphs"
TOPOLOGIES: Table = {
    "ring": Entry("the partitions before and after", f"{GRAPHS}:Ring"),
    "torus": Entry("four neighbours in a grid of ROWS rows", f"{GRAPHS}:Torus", "ROWS"),
    "exponential": Entry("partitions 1, 2, 4, … steps away (Ying et al. 2021)", f"{GRAPHS}:Exponential"),
    "star": Entry("partition 0 and every other partition", f"{GRAPHS}:Star"),
    "two_level": Entry("all partitions of a site; every K rounds all partitions", f"{GRAPHS}:TwoLevel", "SITE:K"),
}


class Decentralised(Plugin):
    """Averages each partition's network with the neighbours' networks (decentralised training)."""

    decides = True
    tables: ClassVar = {"topologies": TOPOLOGIES}

    topology: Annotated[str | tuple[tuple[int, int], ...] | None, BeforeValidator(read_values)] = Field(
        default=None,
        description=f"graph of neighbours that average networks: {', '.join(spelled(TOPOLOGIES))}, FILE.json",
    )

    @classmethod
    def imply(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Its algorithm beside a topology, and a ring beside the algorithm."""
        from roundweave.flows.config.algorithms import algorithm_table

        given = {"algorithm": ALGORITHM, **given} if given.get("topology") else given
        named = algorithm_table(given.get("algorithm"))["name"]
        return {**given, "topology": "ring"} if named == ALGORITHM and given.get("topology") is None else given

    @classmethod
    def seen(cls, folder: Path, option: str, value: Any) -> Any:
        """Join a file of edges to the folder."""
        return str(folder / value) if isinstance(value, str) and value.endswith((".json", ".toml")) else value

    def plan(self, plan: Plan) -> Plan:
        """Say how networks are mixed; all partitions take part in each round, as the state is the mean of all."""
        assert self.topology is not None
        algorithm, topology = plan.algorithm, find_topology(self.topology, plan.config.partitions)
        if OWN not in algorithm.map.carry or not algorithm.when.together:
            raise UsageError("topology needs rounds of partitions that carry networks of their own; choose d_psgd")
        if algorithm.apply != Sgd():
            raise UsageError("with a topology the state is the mean of all networks: leave apply out")
        return plan.fill("topology", mixing=topology, sampler=None)

    @classmethod
    def shown(cls, run: StoredRun) -> dict[str, str]:
        """Its name, or how many edges it has."""
        named = run.config.get("topology") or ""
        return {"topology": named if isinstance(named, str) else f"{len(named)} edges"}


def find_topology(named: str | tuple[tuple[int, int], ...], partitions: int) -> Topology:
    """The topology of a name or of edges; raises `UsageError` if it does not fit the partitions."""
    from roundweave.flows.plugins.topology.graphs import Edges

    made: Topology = make("topology", named, TOPOLOGIES) if isinstance(named, str) else Edges(named)
    made.check(partitions)
    return made
