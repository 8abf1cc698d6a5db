"""Stored runs as the facade offers them: the views of `storage`, plus networks, data and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from roundweave.storage.errors import DataError, NotARun, printable
from roundweave.storage.places.base import Where, full_address
from roundweave.storage.rounds.tensors import Contents
from roundweave.storage.runs import measures
from roundweave.storage.runs.names import WhichRound, default_root, recorded_name, recorded_plugins
from roundweave.storage.runs.run import StoredRun, open_stored

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from torch import nn

    from roundweave.flows.evidence.recomputing import Recomputing
    from roundweave.flows.evidence.replaying import Replay
    from roundweave.flows.evidence.scoring import RoundScore
    from roundweave.storage.runs.arrays import Arrays
    from roundweave.storage.runs.figures import Plots
    from roundweave.storage.upkeep.verifying.verify import Verification
    from roundweave.tasks.networks.objective import ModelSpec
    from roundweave.tasks.rounds.evidence.recombining import Recombination


class Run(StoredRun):
    """A stored run, as it was when you opened or refreshed it. `open_run` opens a run.

    ``run["fc1.weight"]`` is one tensor over all rounds, ``(round, *shape)``. The tensor is read when you use its
    values. Looking at a run writes nothing and executes none of its code.

    Example:
        >>> run = rw.open_run("first")
        >>> run.done, run.status, run.history()
    """

    arrivals, changes, description = measures.arrivals, measures.changes, property(measures.description)
    carried = measures.carried
    diff, divergence, drift = measures.diff, measures.divergence, measures.drift

    def __init__(self, where: Where, root: Where | None = None, until: int | None = None, **placed: Any) -> None:
        self.root = root or default_root()
        self.placed = {"root": self.root, **placed}
        super().__init__(where, self._computed, until)

    def _computed(self, round: int) -> Contents:
        return self._again(round)

    @cached_property
    def _again(self) -> Recomputing:
        """Compute the tensors of rounds that are not stored, in this process or as `placed` says."""
        from roundweave.flows.evidence.recomputing import Recomputing

        return Recomputing(self.address, self.placed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address of the run; unpickling opens the run there."""
        return partial(type(self), full_address(self.address), until=self.until, **self.placed), ()

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return one tensor of the state over the rounds of `kept`.

        Args:
            name: One of `Run.tensors`, or the name of a parameter or buffer alone.

        Returns:
            An array ``(round, *shape)``. Its values are read and verified when you use them. bfloat16 is shown as
            float32. A frozen tensor is stored once: its array is ``(*shape)`` and is read at once.

        Raises:
            TensorMissing: The run stores no tensor of this name.

        Example:
            >>> run["fc1.weight"].sel(round=3)
        """
        return self._arrays(kept=True).named(name)

    @property
    def ds(self) -> xr.Dataset:
        """The state and the numbers of all committed rounds, as an `xarray.Dataset`.

        Tensors are read when you use their values. Parameters, buffers, frozen parameters, scores, bookkeeping and
        metrics have short names. If two have the same name, the first in this order gets the short name.
        Everything else has its path as the name, such as ``memory/velocity/fc1.weight``. Pruned values are NaN.
        """
        return self._arrays().data_set()

    @property
    def tree(self) -> xr.DataTree:
        """Everything that is stored of the committed rounds, as an `xarray.DataTree` of groups.

        Tensors are read when you use their values. Besides the state and the numbers, the tree has the groups
        ``updates``, ``arrived`` (buffers that partitions sent), ``extras``, ``carry``, ``observed``,
        ``permutations`` and ``similarities``. Their arrays are (round, partition, …). The group ``partitions`` has
        the partition of each example. Absent values are NaN.
        """
        return self._arrays().data_tree()

    def _arrays(self, kept: bool = False) -> Arrays:
        from roundweave.storage.runs.arrays import arrays  # xarray, which training does not need

        return arrays(self, kept)

    def verify(self, expect: str | None = None) -> Verification:
        """Read every file of the run as the file is now, and compare the file with the commit records.

        Args:
            expect: A chain (see `chain`) that you noted earlier. The chain proves that the history up to its round
                is unchanged.

        Returns:
            What was read, and one finding for each file that is damaged, missing or foreign.

        Raises:
            UsageError: `expect` is no chain.
            NotARun: The run is gone from its address.
            PlaceError: A file could not be read.

        Example:
            >>> assert run.verify().sound
        """
        from roundweave.storage.upkeep.verifying.verify import verify

        return verify(self._place, expect)

    @property
    def plot(self) -> Plots:
        """The plots of the run.

        Methods are ``run.plot.history(ax=None)``, ``divergence``, ``changes``, ``refusals`` and ``staleness``.
        """
        from roundweave.storage.runs.figures import Plots

        return Plots(self)

    def examples(self, partition: int | str, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """Load the data of the run again, and return the examples of one partition in one round.

        Args:
            partition: The number of the partition, from 0, or its name.
            round: The number of the round; by default the last one.
            trust: Allows executing the code that the run stores, to load the data. A run under your own root needs
                no permission. A run from elsewhere needs `trust` if a function of its author gives the data.

        Returns:
            A table with the numbers of the examples as index, in the order of the partition. The column ``label``
            is missing if targets are not single labels.

        Raises:
            UsageError: The partition does not exist, the run is a merge, or loading needs `trust`.
            DataError: The data are missing, or are not the data of the run.
            RoundMissing: The round does not exist, or each partition brought data of its own.
            StoreDamaged: The stored split differs from the committed split.

        Example:
            >>> run.examples(2)["label"].value_counts()
        """
        import pandas as pd

        from roundweave.flows.evidence.dealing import deal_again
        from roundweave.tasks.data.distribution import labels

        number = self.find_partition(partition)
        at, dealt = self.round(round), deal_again(self, self.root, trust)
        examples = dealt.rows(number, dealt.split.number(at.number))
        if sorted(examples) != (at.owners == number).nonzero()[0].tolist():
            raise DataError(f"{self.name}: partition {partition} of round {at.number} now has other examples")
        table = pd.DataFrame(index=pd.Index(examples, name="example"))
        every_label = labels(dealt)
        return table if every_label is None else table.assign(label=every_label[table.index])

    def label_counts(self, round: int = -1, trust: bool = False) -> pd.DataFrame:
        """Load the data of the run again, and count the examples of each label in each partition.

        Args:
            round: The number of the round; by default the last one.
            trust: Allows executing the code that the run stores, to load the data; see `examples`.

        Returns:
            The table of `roundweave.label_counts`, which `roundweave.draw_counts` draws.

        Raises:
            UsageError: The run is a merge, or loading needs `trust`.
            DataError: The data are missing, or are not the data of the run.
            RoundMissing: The round does not exist.

        Example:
            >>> run.label_counts()["size"]
        """
        from roundweave.flows.evidence.dealing import deal_again
        from roundweave.tasks.data.distribution import label_counts

        dealt = deal_again(self, self.root, trust)
        return label_counts(dealt, dealt.split.number(self.round(round).number))

    def network(self, trust: bool = False) -> nn.Module:
        """Build the network, and load the parameters and buffers after the last round.

        Args:
            trust: Allows executing the code that the run stores; see `Round.network`.

        Returns:
            The module, in evaluation mode.

        Raises:
            RoundweaveError: As `Round.network`.

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
        without: Sequence[int | str] = (),
        save: str | None = None,
        trust: bool = False,
        **options: Any,
    ) -> Recombination:
        """Reduce and apply the stored updates of one round, or of all rounds, in another way. Nothing is trained.

        Args:
            round: The round to reduce again, as for `Run.round`. None takes all rounds.
            reduce: Another reduce: a name, a function or a value such as ``rw.Median()``. The default is the run's
                own.
            apply: Another apply, in the same forms. The default is the run's own.
            without: The partitions to leave out, by number or name.
            save: The name of a new run that stores the result. By default nothing is written.
            trust: Allows executing the code that the run stores. A run from outside your root needs `trust`.
            options: Other fields of `RecombineConfig`, such as ``apply_options`` and ``data``.

        Returns:
            The loss and the scores of each new state, beside the recorded ones.

        Raises:
            UsageError: The options contradict each other, or do not fit the run.
            RoundMissing: The run has no such round.
            RoundPruned: A state or an update that is needed was pruned.
            StoreDamaged: Stored bits differ from the committed bits.

        Example:
            >>> run.recombine(3, reduce=rw.Median(), without=[2])
        """
        from roundweave.flows.evidence.recombining import RecombineConfig, recombine

        place = {"run": full_address(self.address), "root": self.root, "trust": trust, "name": save}
        parts = {"round": self._within(round), "reduce": reduce, "apply": apply, "without": tuple(without)}
        return recombine(RecombineConfig(**{"executor": "inline"} | place | parts | options))

    def replay(
        self, rounds: int | Iterable[int] | Literal["last", "all"] = "last", *, trust: bool = False, **options: Any
    ) -> Replay:
        """Compute rounds again from the stored states, and compare every bit of the updates and of the next state.

        A replay writes nothing. It needs no Prefect, and Dask only for ``executor="graph"``.

        Args:
            rounds: One round or several by number, ``"last"``, or ``"all"``.
            trust: Allows executing the code that the run stores. A run from outside your root needs `trust`.
            options: Other fields of `ReplayConfig`. ``data`` names the place of the same examples, if they have
                moved. ``executor`` is ``"inline"`` by default; for other executors, ``workers`` or ``scheduler``
                name the workers.

        Returns:
            One result for each round: whether the bits are identical, and the first difference.

        Raises:
            UsageError: The run cannot be replayed in this way, or needs `trust`.
            RoundMissing: The round does not exist, or the state before the round is absent.
            DataError: The data are missing, or are not the data of the run.

        Example:
            >>> run.replay("all")
        """
        from roundweave.flows.evidence.replaying import ReplayConfig, replay

        which = (rounds,) if isinstance(rounds, int) else rounds if isinstance(rounds, str) else tuple(rounds)
        if self.until is not None and isinstance(which, str):
            which = tuple(self.committed[1:]) if which == "all" else (self.done,)
        place = {"run": full_address(self.address), "root": self.root, "trust": trust, "rounds": which}
        return replay(ReplayConfig(**{"executor": "inline"} | place | options))

    def score(
        self, round: WhichRound = "last", data: Any = None, scores: Any = None, trust: bool = False, **options: Any
    ) -> RoundScore:
        """Score the network after a round, on other data or on the held-out examples of the run.

        Args:
            round: The round, as for `Run.round`.
            data: Examples in any form that ``TrainConfig(data=...)`` takes. If the data have held-out examples,
                only these are scored, else all. The default are the held-out examples of the run, which must be
                unchanged.
            scores: Names of scores, or functions, as for training. The default are the scores of the run.
            trust: Allows executing the code that the run stores. A run from outside your root needs `trust`.
            options: Other fields of `ScoreConfig`: ``target``, ``held_out_transform``, ``collate``, ``device``,
                ``executor``.

        Returns:
            The `score` with the loss, the other scores and the number of examples, and the digest of the data.

        Raises:
            UsageError: A score does not exist, or the run needs `trust`.
            DataError: The data are missing, or differ in kind from the data that the run was trained on.
            ModelError: The network or a score does not fit the data.
            RoundMissing: The run has no such round.
            RoundPruned: The state was pruned and cannot be computed again.

        Example:
            >>> run.score("best", data="digits").score.loss
        """
        from roundweave.flows.evidence.scoring import ScoreConfig, score_round

        place = {"run": full_address(self.address), "root": self.root, "trust": trust}
        asked = {"round": self._within(round), "data": data, "scores": scores}
        config = ScoreConfig(**place | asked | options)
        return score_round(config, open_run(self.address, self.root, trust=trust))

    def _within(self, round: WhichRound | None) -> WhichRound | None:
        """Return a round by its number in the whole run, if this run ends with an earlier round."""
        return round if self.until is None or round is None else self.round(round).number

    def model(self, trust: bool = False) -> ModelSpec:
        """Return how the network of the run is built, before any weights are loaded.

        Args:
            trust: Allows executing the code that the run stores; see `Round.network`.

        Returns:
            The specification of the network. Its method ``build`` makes the module with initial weights.

        Raises:
            UsageError: The network is built by code of the run that needs `trust`.
            NotARun: The run does not record how its network is built. Use `Round.load_into` instead.

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
            raise NotARun(f"{self.address} does not record how its network is built; load a round into yours")
        options = json.dumps(recorded.model_options or {}, sort_keys=True)
        seed = recorded.seed if self.config.get("init_seed") is None else self.config["init_seed"]
        return ModelSpec(
            recorded.model, tuple(network["inputs"]), network["outputs"], recorded.dtype, seed, options
        )

    def _network(self, trust: bool) -> nn.Module:
        return self.model(trust).build()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text of `str` in IPython and notebooks."""
        printer.text(str(self))

    def __str__(self) -> str:
        """Return several lines: `repr`, the data, the network, the last score, the address and the end."""
        names = {field: recorded_name(self.config[field]) for field in ("data", "model") if self.config.get(field)}
        names["plugins"] = recorded_plugins(self.attributes)
        last = {f"round {self.done}": self._commit(self.done).score or "not scored"}
        facts = names | last | {"stopped": self.stop, "failed": self.failure, "place": self.address}
        lines = (printable(f"{name:10} {fact}") for name, fact in facts.items() if fact)
        return "\n".join([repr(self), *lines])


def open_run(name: Where, root: Where | None = None, **placed: Any) -> Run:
    """Open a stored run to look at it.

    Args:
        name: The name of the run under the root, with or without ``.zarr``, or its path or address. An alias such
            as ``champion`` opens its run up to the round of the alias.
        root: The folder or address of the runs. The default is ``$ROUNDWEAVE_ROOT``, or else ``runs``.
        placed: How to compute rounds that are not stored: ``trust`` and ``data`` as for `Run.replay`, and
            ``executor``, ``workers`` or ``scheduler``. By default this process computes them.

    Returns:
        The run as it is now. `Run.refresh` reads the store again.

    Raises:
        NotARun: The run does not exist, or its attributes are damaged.
        StoreDamaged: No commit record belongs to the run's attributes.

    Example:
        >>> run = rw.open_run("first")
        >>> run.history()["loss"]
    """
    found = open_stored(name, root)
    return Run(found.address, root, found.until, **placed)
