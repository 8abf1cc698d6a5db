"""What takes minutes: many kills at random moments, and the main recipe on MNIST."""

from __future__ import annotations

import pytest

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_the_main_recipe_passes_97_percent_on_mnist(train, mnist) -> None:
    if mnist == "digits":
        pytest.skip("needs MNIST under ROUNDWEAVE_DATA")
    with connect(None, 2) as client:
        run = train(
            GraphExecutor(client), data=mnist, partitions=10, rounds=8, local_epochs=1, batch_size=32, lr=0.1
        )
    assert run.history()["accuracy"].iloc[8] > 0.97
