"""What is used of torchmetrics without being documented is there, and named where it is not."""

from __future__ import annotations

import torch
from torchmetrics import MeanMetric

from tasks.networks.unofficial import count_updates


def test_a_metric_is_told_how_many_batches_it_has_seen() -> None:
    metric = MeanMetric()
    count_updates(metric, 2)
    assert metric.update_count == 2, "torchmetrics counts otherwise now: mend tasks/networks/unofficial.py"
    metric.update(torch.ones(1))
    assert metric.update_count == 3
