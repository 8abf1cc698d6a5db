"""Elastic averaging: local training of a replica that an elastic force ties to a parameter server."""

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
"""The sum of all partitions' elasticities, as in the experiments of Zhang et al. 2015, section 5."""


@dataclass(frozen=True)
class Elastic(LocalSteps):
    """Elastic averaging: each partition carries its own parameters x (Zhang et al. 2015, Algorithm 1).

    In each map, x and the server's parameters move towards each other by `elasticity` times their difference, and
    x takes its local steps; the first uses the gradient at x before the move. The server's part of the move is
    pushed as the direction. The default elasticity is 0.9 divided by the number of partitions.

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
        """This map with the default elasticity for the number of partitions filled in."""
        bound = super().bound(objective, partitions)
        return replace(bound, elasticity=self.elasticity or FORCE / partitions.split.partitions)

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train on the partition; direction and carried parameters are one vector (elements,) per dtype."""
        assert self.elasticity is not None
        own, moves = carry.get("own", state.params), dict[str, Any]()
        for name, server in state.params.items():
            wide = accumulator(name)
            moves[name] = ((own[name].to(wide) - server.to(wide)) * self.elasticity).to(server.dtype)
        update, arrived = self.walk(objective, replace(state, params=own), examples, seed, move=moves)
        return replace(update, direction={name: -move for name, move in moves.items()}, carry={"own": arrived})
