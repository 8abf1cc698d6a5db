"""What all ranks tell each other through torch.distributed, small things and large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Broken(BaseException):
    """A rank of the group is gone, or never came; the others cannot go on.

    No fault of the work that it ends, which must not take it for one of its own.
    """


class Collectives:
    """Exchanges among some ranks, all of which take part in each; raises `Broken` where one is gone."""

    def __init__(self, process_group: Any = None) -> None:
        self._group = process_group
        self.ranks = dist.get_world_size(process_group)

    def numbers(self, number: int) -> list[int]:
        """The number that each rank tells, in their order, once all have told theirs."""
        return [int(told) for told in self.tensors(torch.tensor([number]))]

    def objects(self, value: Any) -> list[Any]:
        """A small value of each rank, in their order."""
        values: list[Any] = [None] * self.ranks
        _whole(lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def tensors(self, sent: torch.Tensor) -> list[torch.Tensor]:
        """What each rank sends, in their order: tensors of one shape and dtype."""
        received = [torch.empty_like(sent) for _ in range(self.ranks)]
        _whole(lambda: dist.all_gather(received, sent, group=self._group))
        return received

    def scattered(self, sent: torch.Tensor, sizes: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """What the ranks have for this one, (byte,), so many bytes each; it sends so many to each."""
        whole = torch.empty(sum(received), dtype=torch.uint8)
        _whole(lambda: dist.all_to_all_single(whole, sent, [*received], [*sizes], group=self._group))
        return whole

    def close(self) -> None:
        """Let go of the others, who learn it from their connections."""
        # Errors keep what the frames that they passed have: a group among these would stay connected.
        ours, self._group = self._group, None
        if ours is not None:
            dist.destroy_process_group(ours)


def _whole(exchange: Callable[[], Any]) -> None:
    """An exchange among all."""
    try:
        exchange()
    except RuntimeError as error:
        raise Broken(str(error)) from error
