"""From similarities of units to an assignment: one to one, or to the k most similar."""

from __future__ import annotations

import numpy as np
import torch


def assign(similarity: torch.Tensor) -> torch.Tensor:
    """The permutation, int64 (units,), with the largest total similarity: unit i is given source unit p[i].

    The assignment problem of Kuhn 1955, solved by scipy's shortest augmenting paths (Crouse 2016).
    """
    from scipy.optimize import linear_sum_assignment  # a quarter of a second that only a merge has to pay

    cost = (-similarity).double().numpy()
    # Costs that start from zero in each row and column leave short paths to search: the same optimum, sooner.
    cost -= cost.min(1, keepdims=True)
    cost -= cost.min(0, keepdims=True)
    return torch.from_numpy(linear_sum_assignment(cost)[1].astype(np.int64))


def spread(similarity: torch.Tensor, k: int | None, temperature: float) -> torch.Tensor:
    """A row-stochastic matrix (units, source units): softmax of similarity / temperature over the k most similar.

    k None is all of them; k = 1 gives each unit the one most similar to it, and some source unit to nobody.
    """
    kept, where = similarity.topk(similarity.shape[1] if k is None else min(k, similarity.shape[1]), dim=1)
    return torch.zeros_like(similarity).scatter_(1, where, torch.softmax(kept / temperature, dim=1))
