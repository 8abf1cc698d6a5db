"""A small configuration that is trained night after night, in a process and as fast as it goes."""

from __future__ import annotations

from typing import Any

import roundweave as rw

SMALL = {"model": "logistic", "partitions": 2, "local_steps": 2, "executor": "inline", "rounds": 2}


def night(**fields: Any) -> rw.TrainConfig:
    """The configuration, with other fields."""
    return rw.TrainConfig(**SMALL | fields)


def trained(**fields: Any) -> rw.Run:
    """A run of it, under the root of the test."""
    return rw.train(night(**fields), bar=False)
