"""Exchanges among ranks through torch.distributed, of numbers, objects and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Broken(BaseException):
    """A rank of the group is gone or never came, so that the others cannot go on.

    It is a `BaseException`, so that code which handles errors of a map or of a user does not catch it.
    """


class Collectives:
    """Exchanges in which all ranks of a group must take part. Each raises `Broken` if a rank is gone."""

    def __init__(self, process_group: Any = None) -> None:
        self._group = process_group
        self.ranks = dist.get_world_size(process_group)

    def numbers(self, number: int) -> list[int]:
        """The numbers of all ranks in their order. Returns once all ranks have called it."""
        return [int(each) for each in self.tensors(torch.tensor([number]))]

    def objects(self, value: Any) -> list[Any]:
        """The values of all ranks in their order; for small ones, which are pickled."""
        values: list[Any] = [None] * self.ranks
        unbroken(lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def tensors(self, sent: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks in their order; they must have one shape and dtype."""
        received = [torch.empty_like(sent) for _ in range(self.ranks)]
        unbroken(lambda: dist.all_gather(received, sent, group=self._group))
        return received

    def scattered(self, sent: torch.Tensor, sizes: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Send each rank its part of `sent`, (byte,), of `sizes` bytes each.

        Returns the parts that the ranks sent to this one, (byte,) in their order, of `received` bytes each.
        """
        whole = torch.empty(sum(received), dtype=torch.uint8)
        unbroken(lambda: dist.all_to_all_single(whole, sent, [*received], [*sizes], group=self._group))
        return whole

    def close(self) -> None:
        """Disconnect from the other ranks, which notice it."""
        # An error keeps the variables of the frames that it passed: a group among them would stay connected.
        ours, self._group = self._group, None
        if ours is not None:
            dist.destroy_process_group(ours)


def unbroken(exchange: Callable[[], Any]) -> Any:
    """What an exchange returns; raises `Broken` if it fails because a rank is gone."""
    try:
        return exchange()
    except RuntimeError as error:
        raise Broken(str(error)) from error
