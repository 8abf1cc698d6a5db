"""What cannot be exported is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from storage.errors import ModelError
from tasks.matching.units import find_units


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y if y.sum() > 0 else -y


def test_a_module_that_cannot_be_exported_is_refused_in_one_line():
    with pytest.raises(ModelError, match=r"torch\.export cannot trace DataDependent: ") as caught:
        find_units(DataDependent(), (torch.randn(2, 4),))
    assert "\n" not in str(caught.value)
