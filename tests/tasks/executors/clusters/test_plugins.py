"""What is used of Dask without being documented is there, and named where it is not."""

from __future__ import annotations

import distributed.utils
import pytest
from distributed import SpecCluster
from distributed.batched import BatchedSend


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (distributed.utils, "_forkserver_preload_set"),
        (SpecCluster, "_correct_state"),
        (BatchedSend("1ms"), "interval"),
    ],
)
def test_names_that_are_used_are_there(where, name) -> None:
    assert hasattr(where, name), f"distributed has no {name} any more: mend tasks/executors/clusters/plugins.py"
