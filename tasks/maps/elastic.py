"""A replica's turn at a parameter server to which it is tied by an elastic force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from storage.errors import UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks import options as option
from tasks.data.examples import Examples
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import Objective
from tasks.numerics import accumulator

FORCE = 0.9
"""The elasticity of all partitions together, as in the paper's experiments (section 5)."""


@dataclass(frozen=True)
class Elastic(LocalSteps):
    """Elastic averaging: a partition keeps its own parameters x (Zhang et al. 2015, Algorithm 1).

    At its turn x and the server's parameters move towards each other by `elasticity` times their difference, and
    x takes its local steps, the first by the gradient of where x was before the move. The server is pushed its
    part of the move when the turn ends. Without an elasticity, it is 0.9 by the number of partitions.

    >>> Elastic(local_steps=10).carry
    ('own',)
    """

    elasticity: option.Elasticity = None

    carry = ("own",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init != "shared":
            raise UsageError("elastic averaging begins from one network; leave init out")

    def bound(self, objective: Any, partitions: Any) -> Self:
        """This map with the elasticity for so many partitions."""
        bound = super().bound(objective, partitions)
        return replace(bound, elasticity=self.elasticity or FORCE / partitions.split.partitions)

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train; direction and own parameters are one vector (elements,) per dtype."""
        assert self.elasticity is not None
        own, moves = carry.get("own", state.params), dict[str, Any]()
        for name, server in state.params.items():
            wide = accumulator(name)
            moves[name] = ((own[name].to(wide) - server.to(wide)) * self.elasticity).to(server.dtype)
        update, arrived = self.walk(objective, replace(state, params=own), examples, seed, move=moves)
        return replace(update, direction={name: -move for name, move in moves.items()}, carry={"own": arrived})
