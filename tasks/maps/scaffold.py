"""SCAFFOLD: local training that corrects for how a partition's gradients differ from the mean over all."""

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

    Each of the K steps uses g - c_i + c in place of the gradient g. A partition carries c_i, which becomes its
    mean gradient in the round, c_i - c + (start - arrived) / (K lr), and sends it as the extra ``control``. The
    server's c, stored by `KeepExtras`, is the mean of all that were sent. That equals the paper's c + mean(change
    of c_i) if all partitions take part; if one is refused, there is no lasting error, as a sum of changes would
    have.

    >>> Scaffold(local_epochs=1).carry
    ('control',)
    """

    carry = extras = ("control",)

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train on the partition; direction and control variate are one vector (elements,) per dtype."""
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
