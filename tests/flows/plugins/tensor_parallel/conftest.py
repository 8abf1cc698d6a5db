"""The networks of these tests as models by name."""

from __future__ import annotations

import pytest

from roundweave.tasks.networks.reference import MODELS
from tests.flows.plugins.tensor_parallel.networks import NETWORKS


@pytest.fixture(autouse=True)
def _own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, build in NETWORKS.items():
        monkeypatch.setitem(MODELS, name, build)
