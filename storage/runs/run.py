"""A read-only view of a stored run, as notebooks use it. It needs neither Prefect nor Dask and never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from roundweave.storage.errors import printable
from roundweave.storage.places.base import Where
from roundweave.storage.rounds.commits import ranking
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.runs.facts import RunFacts
from roundweave.storage.runs.names import WhichRound, find_run, recorded_name, which_round
from roundweave.storage.values.state import Update

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from roundweave.storage.runs.arrays import Arrays
    from roundweave.storage.runs.round import StoredRound
    from roundweave.storage.runs.tables import Totals
    from roundweave.storage.upkeep.verifying.verify import Verification


def open_stored(run: Where, root: Where | None = None) -> StoredRun:
    """Open a stored run by its name under the root, with or without ``.zarr``, or by its address.

    Raises `NotARun` where there is no run. `roundweave.flows.stored.open_run` gives the same run with its network.
    """
    return StoredRun(find_run(run, root))


class StoredRun(RunFacts):
    """A stored run as it was when it was opened or last refreshed; ``run["fc1.weight"]`` is a tensor over rounds.

    The attributes are read on opening; commit records, tensors and numbers when they are asked for.
    """

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
        absent = self.absent
        return self._arrays(list(filter(absent.has_state, self.committed)), absent).named(name)

    @property
    def ds(self) -> xr.Dataset:
        """The state and the numbers of all committed rounds; tensors are read when their values are used.

        Parameters, buffers, frozen parameters, scores, bookkeeping and metrics go by their short names. Where two
        have the same name, the first in this order has it, and the other goes by its path. All else goes by its
        path as well, such as ``memory/velocity/fc1.weight``. What was pruned is NaN.
        """
        return self._arrays(self.committed, self.absent).data_set()

    @property
    def tree(self) -> xr.DataTree:
        """Everything stored of the committed rounds, in groups; tensors are read when their values are used.

        Besides the state and the numbers there are the groups ``updates``, ``arrived`` (the buffers that
        partitions sent), ``extras``, ``carry``, ``observed``, ``permutations`` and ``similarities``, whose
        arrays are (round, partition, …), and ``partitions``, which says what partition each example went to.
        What is absent is NaN.
        """
        return self._arrays(self.committed, self.absent).data_tree()

    def _arrays(self, rounds: list[int], absent: Pruned) -> Arrays:
        from roundweave.storage.runs.arrays import Arrays  # a flow that only trains need not wait for xarray

        return Arrays(self.name, self._store, rounds, self._commit, absent)

    def history(self) -> pd.DataFrame:
        """The numbers of all committed rounds as a table.

        Returns:
            A row for each round, with its number as index. Columns are ``loss`` and the other scores on the
            held-out examples, ``seconds``, the metrics that maps report, and ``examples``, ``accepted`` and
            ``refused``, which count. A metric is the mean over the accepted updates that report it, weighted by
            their numbers of examples; where its name is taken, its column is ``map_<name>``. NaN stands for a
            number that a round does not have.

        Raises:
            NotARun: The run has no committed round.

        Example:
            >>> run.history()[["loss", "seconds"]].tail()
        """
        from roundweave.storage.runs.tables import history_table

        return history_table(self._history)

    @property
    def description(self) -> pd.DataFrame:
        """What was recorded of the examples as the run began, with a row for each column.

        Columns are ``dtype``, ``examples`` (how many were looked at), ``missing`` (the share of NaN), ``mean`` and
        ``deviation`` of the finite numbers, and ``classes`` with their shares. The row of the targets is
        ``targets``; inputs without names of columns are ``inputs``, or ``inputs 3`` if they are flat and few.
        Raises `UsageError` for a run that recorded none.
        """
        from roundweave.storage.runs.tables import columns_table

        return columns_table(self)

    def drift(self, other: StoredRun | None = None) -> pd.DataFrame:
        """How far the examples of this run have drifted from those of another one.

        Args:
            other: The other run; by default the parent, with which this run was compared as it began.

        Returns:
            A row for each column and for each new or gone category, what matters most first. ``what`` is ``new``,
            ``gone``, ``moved much``, ``moved`` or ``stable``, ``psi`` the population stability index, and
            ``before`` and ``after`` are the moments, or the shares of the categories.

        Raises:
            UsageError: One of the runs recorded no columns, or this one has no parent that did.

        Example:
            >>> run.drift(rw.open_run("second"))["psi"].max()
        """
        from roundweave.storage.runs.tables import drift_table

        return drift_table(self, other)

    @property
    def totals(self) -> Totals:
        """What a list of runs says of all rounds, read in a fraction of the time that `history` takes."""
        from roundweave.storage.runs.tables import totals_of

        return totals_of(self._history)

    def arrivals(self) -> pd.DataFrame:
        """The updates that were pushed to a parameter server.

        Returns:
            A row for each update, in the order of the rounds; no rows where rounds waited for all partitions.
            Columns are ``round``, ``partition``, ``push`` (which of its partition or cohort, from 1), ``version``
            (the round whose state the map began from), ``staleness`` (rounds in between that took an update),
            ``accepted``, ``seconds`` that the map took, and ``worker``.

        Example:
            >>> run.arrivals().groupby("partition")["staleness"].mean()
        """
        from roundweave.storage.runs.tables import arrivals_table

        return arrivals_table(map(self._commit, self.committed))

    def round(self, round: WhichRound) -> StoredRound:
        """One committed round.

        Args:
            round: Its number, where negative numbers count from the end; ``"last"``; or ``"best"``, which is the
                best one by the `best` of the configuration, or else that with the highest accuracy, or with the
                lowest loss where no accuracy was scored.

        Returns:
            The round, whose tensors are read when they are asked for.

        Raises:
            RoundMissing: The run has no such round.
            UsageError: `round` is neither a number nor one of the two words.

        Example:
            >>> run.round(3).params["fc1.weight"]
        """
        from roundweave.storage.runs.round import StoredRound

        which = which_round(str(round))
        if which == "best":
            return self.best(self.config.get("best") or self.ranked_by)
        number = -1 if which == "last" else which
        return StoredRound(self._store, self._commit(number if number >= 0 else self.done + 1 + number))

    @property
    def ranked_by(self) -> str:
        """The score that ``round("best")`` goes by: the configured one, or else ``accuracy``, or ``loss``."""
        scored = "accuracy" if "accuracy" in self.scores else "loss"
        return ranking(self.config.get("best") or scored)[0]

    def best(self, score: str | None = None, lowest: bool | None = None) -> StoredRound:
        """The first of the rounds with the best score.

        Args:
            score: ``"loss"``, or one of `Run.scores`, also as ``"max:f1"`` or ``"min:mine"``. By default it is
                `best` of the configuration, or else the loss.
            lowest: Whether the lowest number is the best one. By default it is for ``loss``, ``mae`` and
                ``perplexity``, also of the worst partitions (``worst_loss``), and for each ``spread_``; for others
                the highest is. Rounds that left examples out of a loss come last.

        Returns:
            The round.

        Raises:
            UsageError: The run has no such score.
            RoundMissing: No round has that score.

        Example:
            >>> run.best("accuracy").number
        """
        from roundweave.storage.runs.tables import best_round

        score = score or self.config.get("best") or "loss"
        return self.round(best_round(self.history(), score, ["loss", *self.scores], lowest))

    def carried(self, round: WhichRound) -> dict[int, Update]:
        """What each partition carries into the round after a given one.

        Args:
            round: The round, as for `Run.round`.

        Returns:
            By partition, the last accepted update that set its carry: its `carry` holds vectors (element,) by slot
            and dtype. Empty for algorithms without a carry.

        Raises:
            RoundMissing: The run has no such round.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.carried("last")[0].carry
        """
        sources = self.round(round).commit.carry_from.items()
        return {partition: self.round(source).update(partition) for partition, source in sources}

    def diff(self, first: int, second: int) -> pd.DataFrame:
        """How the states after two rounds differ, tensor by tensor, computed in float64.

        Args:
            first: The number of the earlier round; negative numbers count from the end.
            second: The number of the later round.

        Returns:
            A row for each tensor, by its path. Columns are ``norm`` (of second minus first), ``relative`` (that
            norm divided by the norm of the first) and ``cosine`` (of the two). Frozen parameters are left out; NaN
            stands where a norm of 0 divides.

        Raises:
            RoundMissing: The run has no such round.
            RoundPruned: A state was pruned or never stored.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.diff(1, -1).sort_values("relative")
        """
        from roundweave.storage.runs.tables import state_difference

        return state_difference(self.round(first), self.round(second))

    def changes(self, rounds: Iterable[int] | None = None) -> pd.DataFrame:
        """How much each round changed each parameter.

        Args:
            rounds: The rounds to compare, ascending; by default those of `kept`.

        Returns:
            A row for each round whose predecessor is among `rounds`, and a column for each parameter: the norm of
            the change divided by the norm of the parameter before, computed in float64.

        Raises:
            RoundMissing: The run has no such round.
            RoundPruned: A state was pruned or never stored.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.changes().max()
        """
        from roundweave.storage.runs.tables import state_changes

        return state_changes(self._each(rounds, self.absent.has_state))

    def divergence(self, rounds: Iterable[int] | None = None) -> pd.DataFrame:
        """How far the accepted updates of each round lie from their weighted mean.

        Args:
            rounds: The rounds to look at; by default those whose updates are stored.

        Returns:
            A row for each round and columns (measure, partition), computed in float64 from the whole directions.
            Measures are ``norm`` (of update minus mean), ``relative`` (that norm divided by the norm of the mean)
            and ``cosine`` (of update and mean). NaN where the partition has no accepted update.

        Raises:
            UsageError: The run has more than 100,000 partitions.
            RoundMissing: The run has no such round.
            RoundPruned: The updates were pruned.
            StoreDamaged: The stored bits are not those that were committed.

        Example:
            >>> run.divergence()["cosine"]
        """
        from roundweave.storage.runs.tables import update_divergence

        return update_divergence(self._each(rounds, self.absent.has_update), self.partitions)

    def _each(self, rounds: Iterable[int] | None, kept: Callable[[int], bool]) -> list[StoredRound]:
        return [self.round(round) for round in (filter(kept, self.committed) if rounds is None else rounds)]

    def __repr__(self) -> str:
        return printable(f"<Run {self.name} · {self.status} · {self._line()}>")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text of `str` where IPython or a notebook shows this object."""
        printer.text(str(self))

    def __str__(self) -> str:
        """The run in several lines: that of `repr`, its data, network, last score and place, and how it ended."""
        names = {field: recorded_name(self.config[field]) for field in ("data", "model") if self.config.get(field)}
        last = {f"round {self.done}": self._commit(self.done).score or "not scored"}
        facts = names | last | {"stopped": self.stop, "failed": self.failure, "place": self.address}
        lines = (printable(f"{name:10} {fact}") for name, fact in facts.items() if fact)
        return "\n".join([repr(self), *lines])

    def _line(self) -> str:
        """The run in one line: rounds, algorithm, partitions and sizes.

        The bytes are those of rounds that each have as many updates as the last one.
        """
        tensors, schema, pruned = self._store.tensors, self._store.schema, self.pruned
        stored = tensors.kept_bytes(self.done, pruned, len(self._commit(self.done).updates))
        parts = (
            f"{self.done}/{self.rounds} rounds{' (1 uncommitted)' * tensors.has_row(self.done + 1)}",
            self.algorithm,
            f"{self.partitions} partitions",
            f"{sum(spec.size for spec in schema.layout.params):,} params",
            f"{stored / 1e6:.3g} MB{' (pruned)' * bool(pruned.rounds)}",
        )
        return " · ".join(parts)
