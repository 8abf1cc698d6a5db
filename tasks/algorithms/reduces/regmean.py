"""A reduce that solves each layer on the inputs of the updates' networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import views
from roundweave.tasks.algorithms.maps.observing import Observation, observation_of
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.algorithms.reduces.tree import Gather, reduce_all
from roundweave.tasks.networks.objective import arrived_tensors

Shrinkage = Annotated[float, Field(ge=0, le=1, description="factor on the off-diagonal elements of Gram matrices")]
GramExamples = Annotated[int, Field(ge=1, description="examples of a partition for the Gram matrices")]


@dataclass(frozen=True)
class RegMean(Gather):
    """The weighted mean of the updates, with each layer solved by the Gram matrices that the maps observed.

    A solved layer minimises the sum of squared differences from the outputs of the updates' networks on their own
    inputs (Jin et al. 2023, section 3). Tensors of no layer take the mean. Call `bound` with a run's network
    before the first round. The maps must be `WithGrams`.

    >>> RegMean(shrinkage=0.5)
    RegMean(shrinkage=0.5, gram_examples=1000)
    """

    shrinkage: Shrinkage = 0.9
    gram_examples: GramExamples = 1000
    layout: Layout | None = field(default=None, repr=False, compare=False)
    observation: Observation | None = field(default=None, repr=False, compare=False)

    def bound(self, objective: Any, partitions: Any) -> RegMean:
        """Return the reduce, bound to the layers of a run's network."""
        return replace(self, layout=objective.layout, observation=observation_of(objective, partitions))

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """Return the mean update. Its direction ends at the solved layers."""
        from roundweave.tasks.matching.solving.solve import regmean

        if self.layout is None or self.observation is None:
            raise UsageError("RegMean must be bound to the run's network before its first round")
        if any(not update.observed for update in updates):
            raise UsageError("the updates have no Gram matrices: the run was trained with another reduce")
        mean = reduce_all(Mean(), state, updates)
        if len(updates) == 1:
            return mean
        arrived = [arrived_tensors(self.layout, state, update) for update in updates]
        grams = [views(self.observation.specs, update.observed) for update in updates]
        weights = [update.weight for update in updates]
        direction = {dtype: vector.clone() for dtype, vector in mean.direction.items()}
        start, end = (views(self.layout.params, vectors) for vectors in (state.params, direction))
        for name, solved in regmean(arrived, grams, self.observation.layers, weights, self.shrinkage):
            torch.sub(start[name], solved, out=end[name])
        return replace(mean, direction=direction, observed={})
