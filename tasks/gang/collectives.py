"""What all ranks tell each other through torch.distributed, small things and large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class Broken(Exception):
    """A rank of the group is gone, or never came; the others cannot go on."""


def numbers_of_all(number: int) -> list[int]:
    """The number that each rank tells, in their order, once all have told theirs."""
    return [int(told) for told in tensors_of_all(torch.tensor([number]))]


def objects_of_all(value: Any) -> list[Any]:
    """A small value of each rank, in their order."""
    values: list[Any] = [None] * dist.get_world_size()
    _whole(lambda: dist.all_gather_object(values, value))
    return values


def tensors_of_all(sent: torch.Tensor) -> list[torch.Tensor]:
    """What each rank sends, in their order: tensors of one shape and dtype."""
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    _whole(lambda: dist.all_gather(received, sent))
    return received


def _whole(exchange: Callable[[], Any]) -> None:
    """An exchange among all; raises `Broken` where a rank is gone."""
    try:
        exchange()
    except RuntimeError as error:
        raise Broken(str(error)) from error
