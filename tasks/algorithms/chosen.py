"""The name that stands for another algorithm, which is chosen once all ways to train have raced."""

from __future__ import annotations

from storage.errors import UsageError
from tasks import options as option
from tasks.algebra import Algorithm


def auto(
    *,
    lr: option.LearningRate = 0.1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    lr_schedule: option.LearningRateSchedule = "constant",
    batch_size: option.BatchSize = 32,
    most_local_steps: option.MostLocalSteps = None,
) -> Algorithm:
    """What `roundweave plan` chooses, with local steps, partitions and executor; a round stands for an epoch."""
    raise UsageError(
        "auto is no algorithm of its own: `roundweave plan` and `roundweave train` choose one by a race; "
        "name the one that they chose"
    )
