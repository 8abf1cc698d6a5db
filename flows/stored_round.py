"""A stored round as ``import roundweave`` offers it: the view of `storage`, plus its network and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import run_name
from roundweave.storage.runs.round import StoredRound

if TYPE_CHECKING:
    from torch import nn

    from roundweave.tasks.networks.objective import ModelSpec


class Round(StoredRound):
    """A committed round of a stored run: its updates, the state after it, and the network with that state.

    Example:
        >>> run.round(2).params["fc1.weight"].shape
    """

    def __init__(self, store: RoundStore, commit: Commit, model: Callable[[bool], ModelSpec]) -> None:
        super().__init__(store, commit)
        self._model = model

    def network(self, trust: bool = False) -> nn.Module:
        """Build the network and load the parameters and buffers after this round.

        Args:
            trust: Whether code stored in the run may be executed. A run under your own root does not need this;
                one from elsewhere does where its network is built by a function of its author.

        Returns:
            The module, in evaluation mode.

        Raises:
            UsageError: Building the network needs `trust`.
            NotARun: The run does not say how its network is built; use `load_into` with a network of yours.
            ModelError: The network cannot be built.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> logits = run.round(3).network()(inputs)
        """
        return self.load_into(self._model(trust).build()).eval()

    def save(self, place: Where) -> None:
        """Write the parameters and buffers after this round to a checkpoint file.

        Args:
            place: The path of the file, which is replaced where it is there. It ends in ``.safetensors``, whose
                metadata say which round it is, or for a torch file in ``.pt``, ``.pth`` or ``.bin``.

        Raises:
            UsageError: The suffix is another one, the folder is missing, or such a file cannot hold the tensors.
            CheckpointError: The file cannot be written.
            RoundPruned: The state was pruned or never stored.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.best("accuracy").save("best.safetensors")
        """
        from roundweave.storage.checkpoints.writing import write_checkpoint

        name, scores = run_name(self._store.address), json.dumps(self.score.row() if self.score else {})
        facts = {"run": name, "round": str(self.number), "chain": self.chain, "scores": scores}
        digest = str(self._store.attributes["data"].get("digest", ""))
        write_checkpoint(place, self.tensors, facts | {"data_digest": digest})
