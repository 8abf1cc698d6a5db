"""Stored runs as ``import roundweave`` offers them: the views of `storage`, plus networks, data and replays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from roundweave.storage.errors import DataError, NotARun, UsageError
from roundweave.storage.places.base import Where, full_address
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.runs.names import WhichRound, default_root, run_name
from roundweave.storage.runs.round import StoredRound
from roundweave.storage.runs.run import StoredRun, open_stored

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from roundweave.flows.evidence.replaying import Replay
    from roundweave.flows.evidence.scoring import RoundScore
    from roundweave.storage.runs.figures import Plots
    from roundweave.tasks.data.partitions import Partitions
    from roundweave.tasks.networks.objective import ModelSpec
    from roundweave.tasks.rounds.evidence.recombining import Recombination


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


class Run(StoredRun):
    """A stored run as it was when it was opened or last refreshed. Open one with `open_run`.

    ``run["fc1.weight"]`` is that tensor over all rounds, (round, *), read when it is used. Looking at a run never
    writes, and executes none of its code.

    Example:
        >>> run = rw.open_run("first")
        >>> run.done, run.status, run.history()
    """

    def __init__(self, where: Where, root: Where | None = None, **placed: Any) -> None:
        super().__init__(where)
        self.root = root or default_root()
        self.placed = {"root": self.root, **placed}

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle says where the run lies, and it is opened there again."""
        return partial(type(self), full_address(self.address), **self.placed), ()

    def round(self, round: WhichRound) -> Round:

        return Round(self._store, super().round(round).commit, self.model)

    def best(self, score: str | None = None, lowest: bool | None = None) -> Round:
        return self.round(super().best(score, lowest).number)

    @property
    def plot(self) -> Plots:
        """Plots of the run: ``run.plot.history(ax=None)``, `divergence`, `changes`, `refusals`, `staleness`."""
        from roundweave.storage.runs.figures import Plots

        return Plots(self)

    def examples(self, partition: int, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """The examples that a partition has in a round, with their labels. Loads the run's data again.

        Args:
            partition: The number of the partition, from 0.
            round: The number of the round; by default the last one.
            trust: Whether code stored in the run may be executed, to load the data. A run under your own root does
                not need this; one from elsewhere does where its data come from a function of its author.

        Returns:
            A table whose index has the numbers of the examples in the data, in the order in which the partition
            has them, with a column ``label``. The column is missing where targets are not single labels.

        Raises:
            UsageError: There is no such partition, the run was made of networks, or loading needs `trust`.
            DataError: The data are missing, or are not those of the run.
            RoundMissing: There is no such round, or each partition brought data of its own.
            StoreDamaged: The stored split is not the one that was committed.

        Example:
            >>> run.examples(2)["label"].value_counts()
        """
        import pandas as pd

        from roundweave.tasks.data.distribution import labels

        if not 0 <= partition < self.partitions:
            raise UsageError(f"run {self.name} has partitions 0 to {self.partitions - 1}, not {partition}")
        at, dealt = self.round(round), self._dealt(trust)
        examples = dealt.rows(partition, dealt.split.number(at.number))
        if sorted(examples) != (at.owners == partition).nonzero()[0].tolist():
            raise DataError(f"{self.name}: partition {partition} of round {at.number} is dealt other examples now")
        table = pd.DataFrame(index=pd.Index(examples, name="example"))
        every_label = labels(dealt)
        return table if every_label is None else table.assign(label=every_label[table.index])

    def label_counts(self, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """How many examples of each label each partition has in a round. Loads the run's data again.

        Args:
            round: The number of the round; by default the last one.
            trust: Whether code stored in the run may be executed, to load the data; see `examples`.

        Returns:
            The table that `roundweave.label_counts` gives, which `roundweave.draw_counts` draws.

        Raises:
            UsageError: The run was made of networks, or loading needs `trust`.
            DataError: The data are missing, or are not those of the run.
            RoundMissing: There is no such round.

        Example:
            >>> run.label_counts()["size"]
        """
        from roundweave.tasks.data.distribution import label_counts

        dealt = self._dealt(trust)
        return label_counts(dealt, dealt.split.number(self.round(round).number))

    def _dealt(self, trust: bool) -> Partitions:
        """The data of the run and their split, loaded again; raises `DataError` where they are not the same."""
        from roundweave.flows.config.experiment import Dealing
        from roundweave.flows.config.recorded import check_examples, check_trust
        from roundweave.flows.planning.completing import deal
        from roundweave.tasks.data.description import combine, gather_here
        from roundweave.tasks.data.meaning import Meaning

        if self.algorithm == "merge" or self.config.get("data") is None:
            raise UsageError(f"{self.name} was made of networks, not of examples")
        recorded = Dealing.of(self.config)
        check_trust(self, self.root, trust, recorded, ("data",))
        dealt = deal(recorded, meaning=Meaning.recorded(self.attributes["data"]))
        dealt, descriptions = dealt.described_by(gather_here)
        unread = self.attributes["data"].get("validation", "")  # what validates is not dealt
        padded = dealt.loading.collate is not None
        described = combine(descriptions, dealt.called, padded=padded)
        check_examples(self, replace(described, validation=unread))
        return dealt

    def network(self, trust: bool = False) -> nn.Module:
        """Build the network and load the parameters and buffers after the last round.

        Args:
            trust: Whether code stored in the run may be executed; see `Round.network`.

        Returns:
            The module, in evaluation mode.

        Raises:
            RoundweaveError: As `Round.network` does.

        Example:
            >>> logits = run.network()(inputs)
        """
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
        """Reduce and apply the stored updates of one round, or of all, in another way, without training again.

        Args:
            round: The round to reduce again, as for `Run.round`; all rounds where None.
            reduce: Another reduce: a name, a function or a value such as ``rw.Median()``. By default the run's
                own.
            apply: Another apply, in the same forms. By default the run's own.
            without: The partitions whose updates are left out.
            save: The name of a new run to write the result to; by default nothing is written.
            trust: Whether code stored in the run may be executed, which a run from outside your root needs.
            options: Other fields of `RecombineConfig`, such as ``apply_options`` and ``data``.

        Returns:
            Each round with the losses and scores of its new state beside those that the run recorded.

        Raises:
            UsageError: The options do not fit together or do not fit the run.
            RoundMissing: The run has no such round.
            RoundPruned: A state or an update that is needed was pruned.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.recombine(3, reduce=rw.Median(), without=[2])
        """
        from roundweave.flows.evidence.recombining import RecombineConfig, recombine

        place = {"run": full_address(self.address), "root": self.root, "trust": trust, "name": save}
        parts = {"round": round, "reduce": reduce, "apply": apply, "without": tuple(without)}
        return recombine(RecombineConfig(**{"executor": "inline"} | place | parts | options))

    def replay(
        self, rounds: int | Iterable[int] | Literal["last", "all"] = "last", *, trust: bool = False, **options: Any
    ) -> Replay:
        """Compute rounds again from the stored states, and compare every bit of the updates and the next state.

        Nothing is written. Prefect is not needed, and Dask only for ``executor="graph"``.

        Args:
            rounds: A round or several by number, ``"last"``, or ``"all"``.
            trust: Whether code stored in the run may be executed, which a run from outside your root needs.
            options: Other fields of `ReplayConfig`: ``data`` says where the same examples lie now, if they have
                moved; ``executor`` is ``"inline"`` here, and with another one ``workers`` or ``scheduler`` say
                which workers compute.

        Returns:
            The result for each round: whether its bits are the same, and where they first differ.

        Raises:
            UsageError: The run cannot be replayed as asked, or needs `trust`.
            RoundMissing: There is no such round, or the state before it is absent.
            DataError: The data are missing, or are not those of the run.

        Example:
            >>> run.replay("all")
        """
        from roundweave.flows.evidence.replaying import ReplayConfig, replay

        which = (rounds,) if isinstance(rounds, int) else rounds if isinstance(rounds, str) else tuple(rounds)
        place = {"run": full_address(self.address), "root": self.root, "trust": trust, "rounds": which}
        return replay(ReplayConfig(**{"executor": "inline"} | place | options))

    def score(
        self, round: WhichRound = "last", data: Any = None, scores: Any = None, trust: bool = False, **options: Any
    ) -> RoundScore:
        """Score the network after a round on other data, or again on the examples that the run holds out.

        Args:
            round: The round, as for `Run.round`.
            data: Examples in any form that ``TrainConfig(data=...)`` takes; all are scored, or those that the data
                hold out themselves. By default those that the run holds out, which must be as they were.
            scores: Names of scores or functions, as for training. By default those of the run.
            trust: Whether code stored in the run may be executed, which a run from outside your root needs.
            options: Other fields of `ScoreConfig`: ``target``, ``held_out_transform``, ``collate``, ``device``,
                ``executor``.

        Returns:
            The `score` with its loss, other scores and number of examples, and the digest of the data.

        Raises:
            UsageError: There is no such score, or the run needs `trust`.
            DataError: The data are missing, or are not like those that the run was trained on.
            ModelError: The network or a score does not fit the data.
            RoundMissing: The run has no such round.
            RoundPruned: The state was pruned, and cannot be computed again.

        Example:
            >>> run.score("best", data="digits").score.loss
        """
        from roundweave.flows.evidence.scoring import ScoreConfig, score_round

        place = {"run": full_address(self.address), "root": self.root, "trust": trust, "round": round}
        return score_round(ScoreConfig(**place | {"data": data, "scores": scores} | options))

    def model(self, trust: bool = False) -> ModelSpec:
        """How the network of the run is built, before any weights are loaded.

        Args:
            trust: Whether code stored in the run may be executed; see `Round.network`.

        Returns:
            The specification of the network, whose `build` makes the module with its initial weights.

        Raises:
            UsageError: The network is built by code of the run that needs `trust`.
            NotARun: The run does not say how its network is built; use `Round.load_into`.

        Example:
            >>> module = run.model().build()
        """
        from roundweave.flows.config.merging.merge import Architecture
        from roundweave.flows.config.recorded import check_trust
        from roundweave.tasks.networks.objective import ModelSpec

        recorded = Architecture.of(self.config)
        check_trust(self, self.root, trust, recorded, ("model",))
        network = self.attributes.get("network")
        if recorded.model is None or not isinstance(network, dict) or {*network} != {"inputs", "outputs"}:
            raise NotARun(f"{self.address} does not say how its network is built; load a round into yours")
        options = json.dumps(recorded.model_options or {}, sort_keys=True)
        seed = recorded.seed if self.config.get("init_seed") is None else self.config["init_seed"]
        return ModelSpec(
            recorded.model, tuple(network["inputs"]), network["outputs"], recorded.dtype, seed, options
        )


def open_run(name: Where, root: Where | None = None, **placed: Any) -> Run:
    """Open a stored run to look at it.

    Args:
        name: The name of the run under the root, with or without ``.zarr``, or its path or address.
        root: The folder or address under which runs lie; by default ``$ROUNDWEAVE_ROOT``, or else ``runs``.
        placed: How rounds are computed again that are not stored: ``trust`` and ``data`` as for `Run.replay`, and
            ``executor``, ``workers`` or ``scheduler``. By default they are computed in this process.

    Returns:
        The run as it is now; `Run.refresh` reads it again.

    Raises:
        NotARun: There is no such run, or its attributes are damaged.
        StoreDamaged: No commit record belongs to the run's attributes.

    Example:
        >>> run = rw.open_run("first")
        >>> run.history()["loss"]
    """
    return Run(open_stored(name, root).address, root, **placed)
