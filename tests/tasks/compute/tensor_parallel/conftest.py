"""The networks of these tests as models by name, and one thread: the networks are tiny."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from roundweave.tasks.networks.reference import MODELS
from tests.tasks.compute.tensor_parallel.networks import NETWORKS


@pytest.fixture(autouse=True)
def _own_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, build in NETWORKS.items():
        monkeypatch.setitem(MODELS, name, build)
    yield
    torch.set_num_threads(threads)
