"""Stored runs as ``import roundweave`` offers them: the views of `storage`, plus networks, data and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from roundweave.storage.errors import DataError, NotARun, UsageError, printable
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
    """A stored run as it was when it was opened or last refreshed. Open one with `open_run`.

    ``run["fc1.weight"]`` is that tensor over all rounds, (round, *), read when it is used. Looking at a run never
    writes, and executes none of its code.

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
        """Computes what of a round is not stored again, in this process, or as `placed` says."""
        from roundweave.flows.evidence.recomputing import Recomputing

        return Recomputing(self.address, self.placed)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle says where the run lies, and it is opened there again."""
        return partial(type(self), full_address(self.address), until=self.until, **self.placed), ()

    def __getitem__(self, name: str) -> xr.DataArray:
        """One tensor of the state over the rounds of `kept`.

        Args:
            name: One of `Run.tensors`, or the name of a parameter or buffer alone.

        Returns:
            An array (round, *shape), which is read and verified when its values are used; bfloat16 is shown as
            float32. A frozen tensor is stored once, so its array is (*shape) and read at once.

        Raises:
            TensorMissing: The run stores no such tensor.

        Example:
            >>> run["fc1.weight"].sel(round=3)
        """
        return self._arrays(kept=True).named(name)

    @property
    def ds(self) -> xr.Dataset:
        """The state and the numbers of all committed rounds; tensors are read when their values are used.

        Parameters, buffers, frozen parameters, scores, bookkeeping and metrics go by their short names. Where two
        have the same name, the first in this order has it, and the other goes by its path. All else goes by its
        path as well, such as ``memory/velocity/fc1.weight``. What was pruned is NaN.
        """
        return self._arrays().data_set()

    @property
    def tree(self) -> xr.DataTree:
        """Everything stored of the committed rounds, in groups; tensors are read when their values are used.

        Besides the state and the numbers there are the groups ``updates``, ``arrived`` (the buffers that
        partitions sent), ``extras``, ``carry``, ``observed``, ``permutations`` and ``similarities``, whose
        arrays are (round, partition, …), and ``partitions``, which says what partition each example went to.
        What is absent is NaN.
        """
        return self._arrays().data_tree()

    def _arrays(self, kept: bool = False) -> Arrays:
        from roundweave.storage.runs.arrays import arrays  # a flow that only trains need not wait for xarray

        return arrays(self, kept)

    def verify(self, expect: str | None = None) -> Verification:
        """Read every file of the run as it is now, and compare it with the commit records.

        Args:
            expect: A chain (see `chain`) that you noted down earlier, to prove that the history up to it is the
                same.

        Returns:
            What was read, and a finding for each file that is damaged, missing or foreign.

        Raises:
            UsageError: `expect` is no chain.
            NotARun: Nothing lies at the run's address any more.
            PlaceError: A file could not be read.

        Example:
            >>> assert run.verify().sound
        """
        from roundweave.storage.upkeep.verifying.verify import verify

        return verify(self._place, expect)

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

        from roundweave.flows.evidence.dealing import deal_again
        from roundweave.tasks.data.distribution import labels

        if not 0 <= partition < self.partitions:
            raise UsageError(f"run {self.name} has partitions 0 to {self.partitions - 1}, not {partition}")
        at, dealt = self.round(round), deal_again(self, self.root, trust)
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
        from roundweave.flows.evidence.dealing import deal_again
        from roundweave.tasks.data.distribution import label_counts

        dealt = deal_again(self, self.root, trust)
        return label_counts(dealt, dealt.split.number(self.round(round).number))

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
        parts = {"round": self._within(round), "reduce": reduce, "apply": apply, "without": tuple(without)}
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
        if self.until is not None and isinstance(which, str):
            which = tuple(self.committed[1:]) if which == "all" else (self.done,)
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

        place = {"run": full_address(self.address), "root": self.root, "trust": trust}
        asked = {"round": self._within(round), "data": data, "scores": scores}
        config = ScoreConfig(**place | asked | options)
        return score_round(config, open_run(self.address, self.root, trust=trust))

    def _within(self, round: WhichRound | None) -> WhichRound | None:
        """A round by its number in the whole run, where this one ends with an earlier round."""
        return round if self.until is None or round is None else self.round(round).number

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

    def _network(self, trust: bool) -> nn.Module:
        return self.model(trust).build()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text of `str` where IPython or a notebook shows this object."""
        printer.text(str(self))

    def __str__(self) -> str:
        """The run in several lines: that of `repr`, its data, network, last score and place, and how it ended."""
        names = {field: recorded_name(self.config[field]) for field in ("data", "model") if self.config.get(field)}
        names["plugins"] = recorded_plugins(self.attributes)
        last = {f"round {self.done}": self._commit(self.done).score or "not scored"}
        facts = names | last | {"stopped": self.stop, "failed": self.failure, "place": self.address}
        lines = (printable(f"{name:10} {fact}") for name, fact in facts.items() if fact)
        return "\n".join([repr(self), *lines])


def open_run(name: Where, root: Where | None = None, **placed: Any) -> Run:
    """Open a stored run to look at it.

    Args:
        name: The name of the run under the root, with or without ``.zarr``, or its path or address. By an alias
            the run ends with the round that the alias is.
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
    found = open_stored(name, root)
    return Run(found.address, root, found.until, **placed)
