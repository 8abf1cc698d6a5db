"""Stored runs as `roundweave` gives them: what `storage` knows of them, and the networks that they are of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from storage.errors import NotARun
from storage.places.addresses import Where
from storage.runs import round, run
from storage.runs.names import default_root

if TYPE_CHECKING:
    from torch import nn

    from tasks.networks.objective import ModelSpec


class Round(round.Round):
    """One committed round: its updates, the state after it, and the network of that state."""

    def __init__(self, run: Run, number: int) -> None:
        plain = super(Run, run).round(number)
        super().__init__(plain._store, plain.commit)
        self._run = run

    def network(self, trust: bool = False) -> nn.Module:
        """The module with the round's weights and buffers, in evaluation mode.

        One of the user's own is built by the code that the run keeps, which in a run from outside the root needs
        `trust`. Raises `UsageError`, `ModelError`, `StoreDamaged`.
        """
        return self.load_into(self._run.model(trust).build()).eval()

    def save(self, place: Where) -> None:
        """Write parameters and buffers by name to a ``.safetensors`` or torch file (``.pt``, ``.pth``, ``.bin``).

        Raises `UsageError` for what such a file cannot hold, `CheckpointError` where it cannot be written.
        """
        from storage.checkpoints.writing import write_checkpoint

        write_checkpoint(place, self.tensors)


class Run(run.Run):
    """A stored run as it was when it was opened or last refreshed; `run["fc1.weight"]` is a tensor over rounds."""

    def __init__(self, where: Where, root: Where | None = None) -> None:
        super().__init__(where)
        self._root = root

    def round(self, round: int) -> Round:
        """One committed round; negative numbers count from the end; raises `RoundMissing`."""
        return Round(self, round)

    def network(self, trust: bool = False) -> nn.Module:
        """The module with the weights of the last round; see `Round.network`."""
        return self.round(-1).network(trust)

    def model(self, trust: bool = False) -> ModelSpec:
        """What decides the network before its first round; raises `UsageError` for code that is not trusted."""
        from flows.config.merge import Architecture
        from flows.config.recorded import check_trust
        from tasks.networks.objective import ModelSpec

        fields = ("model", "model_options", "dtype", "seed")
        recorded = Architecture(**{name: self.config[name] for name in fields if name in self.config})
        check_trust(self, self._root or default_root(), trust, recorded, ("model",))
        network = self.attributes.get("network")
        if recorded.model is None or not isinstance(network, dict) or {*network} != {"inputs", "outputs"}:
            raise NotARun(f"{self.address} does not say how its network is built; load a round into yours")
        options = json.dumps(recorded.model_options or {}, sort_keys=True)
        return ModelSpec(
            recorded.model, tuple(network["inputs"]), network["outputs"], recorded.dtype, recorded.seed, options
        )


def open_run(name: Where, root: Where | None = None) -> Run:
    """A run by its name under the root, or by its address; raises `NotARun`."""
    return Run(run.open_run(name, root).address, root)


def list_runs(root: Where | None = None) -> list[Run]:
    """All runs under the root that can be opened, the oldest first."""
    return [Run(each.address, root) for each in run.list_runs(root)]
