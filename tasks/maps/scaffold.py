"""Local training that is corrected for how a partition's gradients differ from those of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from storage.errors import UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors, views
from tasks.data.examples import Examples
from tasks.maps.local_steps import LocalSgd
from tasks.networks.objective import Objective
from tasks.numerics import accumulator


@dataclass(frozen=True)
class Scaffold(LocalSgd):
    """Local SGD with control variates (Karimireddy et al. 2020, Algorithm 1, option II).

    Each of the K steps goes along g - c_i + c. A partition keeps c_i, which becomes its mean gradient on the way,
    c_i - c + (start - arrived) / (K lr), and sends it as the extra ``control``. The server's c, kept by
    `KeepExtras`, is the mean of what was sent: the paper's c + mean(change of c_i) where all partitions take part,
    and where one was refused, free of the error that a sum of changes would carry on.

    >>> Scaffold(local_epochs=1).carry
    ('control',)
    """

    carry = extras = ("control",)

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train; direction and control variate are one vector (elements,) per dtype."""
        if "control" not in state.memory:
            raise UsageError("SCAFFOLD needs the server's control variate: wrap its apply in KeepExtras")
        server = state.memory["control"]
        own = carry.get("control") or {name: torch.zeros_like(vector) for name, vector in server.items()}
        correction = {name: vector - own[name] for name, vector in server.items()}
        terms = views(objective.layout.params, correction)
        update, _ = self.walk(objective, state, examples, seed, lambda name, parameter: terms[name])
        walked = self.count(len(examples)) * self.rate(state)
        control = {
            name: (vector.to(accumulator(name)) / walked - correction[name]).to(vector.dtype)
            for name, vector in update.direction.items()
        }
        return replace(update, carry={"control": control}, extras={"control": control})
