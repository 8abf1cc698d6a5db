"""What a work takes, wherever it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from storage.errors import UsageError


@dataclass(frozen=True)
class Costs:
    """What a work takes of machines as they were measured; raises `UsageError` for what cannot be.

    `examples` are those of an epoch, `batch` those of a step, `state` the bytes of a state and of an update.
    Seconds of a core: `step` of a local step, `start` of a map besides its steps, `fold` to take in a byte
    of an update and reduce it with another, `message` of a message between ranks. Seconds of the scheduler: `task`
    of a task. Seconds of no worker: `round` from a reduce to the next maps, as of the apply. `write` are the bytes
    a second that a process writes to the store; infinite where nothing is kept.
    """

    examples: int
    batch: int
    state: int
    step: float
    start: float = 0.0
    fold: float = 0.0
    task: float = 0.0
    round: float = 0.0
    message: float = 0.0
    write: float = float("inf")

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            positive = name in ("examples", "batch", "step", "write")
            if not (value > 0 if positive else value >= 0):
                raise UsageError(f"costs: {name} = {value} is not {'positive' if positive else 'zero or more'}")

    def map_seconds(self, steps: int, partitions: int = 1, kept: bool = True) -> float:
        """Seconds of a core for a map of some partitions: steps, updates that are kept, and their fold to one."""
        each = self.start + steps * self.step + (self.state / self.write if kept else 0.0)
        return partitions * each + self.fold_seconds(partitions)

    def fold_seconds(self, updates: int, part: float = 1.0) -> float:
        """Seconds of a core to reduce so many updates, of each a part, to one."""
        return max(0, updates - 1) * part * self.state * self.fold

    def epoch_steps(self, partitions: int) -> int:
        """Steps of an epoch, of each partition; at least one."""
        share = -(-self.examples // partitions)
        return max(1, -(-share // self.batch))

    def rounds(self, steps: int, partitions: int) -> float:
        """Rounds of an epoch; a partition with fewer examples than a batch has batches of all of them."""
        batch = min(self.batch, self.examples / partitions)
        return self.examples / (batch * steps * partitions)

    @property
    def alone(self) -> float:
        """Seconds of an epoch in one process that neither sends nor waits."""
        return self.start + self.epoch_steps(1) * self.step
