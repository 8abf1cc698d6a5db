"""Stored runs as `roundweave` gives them: what `storage` knows of them, and the networks that they are of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from storage.errors import NotARun, UsageError
from storage.places.addresses import Where, full_address
from storage.runs import round, run
from storage.runs.names import WhichRound, default_root

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from flows.evidence.replay_result import Replay
    from tasks.data.partitions import Partitions
    from tasks.evidence.recombining import Recombination
    from tasks.networks.objective import ModelSpec


class Round(round.Round):
    """One committed round: its updates, the state after it, and the network of that state."""

    def __init__(self, run: Run, which: WhichRound) -> None:
        plain = super(Run, run).round(which)
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

    def round(self, round: WhichRound) -> Round:
        """One committed round.

        Args:
            round: Its number, of which negative ones count from the end, ``"last"``, or ``"best"``: the one of
                best accuracy, of least loss where no accuracy was scored.

        Returns:
            The round, whose tensors are read when they are asked for.

        Raises:
            RoundMissing: The run has no such round.
            UsageError: `round` is neither a number nor one of the two words.

        Example:
            >>> run.round(3).params["fc1.weight"]
        """
        return Round(self, round)

    def best(self, score: str = "loss", lowest: bool | None = None) -> Round:
        """The first round with the best score: of losses and errors the lowest, of others the highest.

        Args:
            score: ``"loss"``, or one of `Run.scores`.
            lowest: Whether the lowest number is the best one; where None it is of ``loss`` and ``mae`` only.

        Returns:
            The round.

        Raises:
            UsageError: The run has no such score.
            RoundMissing: No round was scored.

        Example:
            >>> run.best("accuracy").number
        """
        return self.round(super().best(score, lowest).number)

    def examples(self, partition: int, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """The examples that a partition has in a round: their numbers in the data as index, the `label` of each.

        The run's data are loaded, which in a run from outside the root needs `trust` where they come by code of
        the user's. Targets that are no single labels are not told. Raises `UsageError`, `DataError` where the data
        are others now, `RoundMissing` where each partition has data of its own.
        """
        from tasks.data.distribution import labels

        table = super().examples(partition, round)
        told = labels(self._dealt(trust))
        return table if told is None else table.assign(label=told[table.index])

    def label_counts(self, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """Examples of each label that each partition has in a round, as `roundweave.label_counts` gives them.

        Raises as `examples` does.
        """
        from tasks.data.distribution import label_counts

        dealt = self._dealt(trust)
        return label_counts(dealt, dealt.split.number(self.round(round).number))

    def _dealt(self, trust: bool) -> Partitions:
        """The data of the run and how they are dealt out, which must be as they were."""
        from flows.config.recorded import check_examples, check_trust
        from flows.config.resolving import deal
        from flows.config.train import Dealing
        from tasks.data.partitions import combine

        if self.config.get("data") is None:
            raise UsageError(f"{self.name} was made of networks, not of examples")
        recorded = Dealing(**{name: self.config[name] for name in Dealing.model_fields if name in self.config})
        check_trust(self, self._root or default_root(), trust, recorded, ("data",))
        dealt = deal(recorded)
        every = range(dealt.split.partitions if dealt.source.partitioned else 1)
        check_examples(self, combine(list(map(dealt.describe, every))).digest)
        return dealt

    def network(self, trust: bool = False) -> nn.Module:
        """The module with the weights of the last round; see `Round.network`."""
        return self.round(-1).network(trust)

    def recombine(
        self,
        round: WhichRound | None = None,
        *,
        reduce: Any = None,
        apply: Any = None,
        without: Sequence[int] = (),
        save: str | None = None,
        trust: bool = False,
        **options: Any,
    ) -> Recombination:
        """Reduce a stored round, or each, again in this process, with no training; see `RecombineConfig`.

        `reduce` and `apply` are names, functions or values such as ``rw.Median()``; `save` names a new run.
        Further `options` are other fields, such as ``apply_options`` and ``data``. Raises `RoundweaveError`.
        """
        from flows.evidence.recombining import RecombineConfig, recombine

        parts = {"reduce": reduce, "apply": apply, "without": tuple(without)}
        place = {"run": self.address, "round": round, "name": save, "trust": trust, "root": self._root}
        given = {name: value for name, value in (parts | place).items() if value is not None}
        config = RecombineConfig(**{"executor": "inline"} | given | options)
        return recombine(config)

    def replay(
        self,
        rounds: int | Iterable[int] | Literal["last", "all"] = "last",
        *,
        data: Any = None,
        executor: Literal["inline", "graph"] = "inline",
        workers: int = 2,
        scheduler: str | None = None,
        trust: bool = False,
    ) -> Replay:
        """Compute rounds again from what is stored, and compare every bit of the updates and of the next state.

        `data` is another place of the same examples. Code of the user's in a run from outside the root needs
        `trust`. Writes nothing, and needs no Prefect, nor Dask where `inline`. Raises `UsageError`, `RoundMissing`
        for a round that is not there or whose state before is not, and `DataError`.
        """
        from flows.evidence.replaying import ReplayConfig, replay

        several = tuple(rounds) if isinstance(rounds, Iterable) else (rounds,)
        values: dict[str, Any] = {"rounds": rounds if isinstance(rounds, str) else several, "data": data}
        values |= {"executor": executor, "workers": workers, "scheduler": scheduler, "trust": trust}
        values |= {"run": full_address(self.address), "root": self._root or default_root()}
        return replay(ReplayConfig(**values))

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
    """Open a stored run to look at it.

    Args:
        name: The run's name under the root, with ``.zarr`` or without, or its address.
        root: The folder or address under which runs lie; ``$ROUNDWEAVE_ROOT``, else ``runs``, where None.

    Returns:
        The run as it is now; `Run.refresh` looks again.

    Raises:
        NotARun: There is no such run, or the description of it is damaged.
        StoreDamaged: None of its rounds has a record of this run.

    Example:
        >>> run = rw.open_run("first")
        >>> run.history()["loss"]
    """
    return Run(run.open_run(name, root).address, root)
