"""The notebook's read-only view of stored runs. Looking needs neither Prefect nor Dask, and never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from storage.errors import NotARun, UsageError, printable
from storage.places.addresses import Where
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from storage.rounds.lease import read_lease
from storage.rounds.log import Link
from storage.rounds.numbers import History
from storage.rounds.pruned import Pruned
from storage.rounds.store import RoundStore
from storage.runs.attributes import checked_attributes
from storage.runs.figures import Plots
from storage.runs.markup import run_card, run_line, score_parts
from storage.runs.names import WhichRound, find_run, recorded_name, run_name, which_round
from storage.runs.round import Round
from storage.runs.tables import (
    arrivals_table,
    best_round,
    history_table,
    state_changes,
    state_difference,
    update_divergence,
)
from storage.upkeep.verifying.verify import Verification, verify
from storage.values.state import Update

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from storage.runs.arrays import Arrays


def open_run(run: Where, root: Where | None = None) -> Run:
    """A run by its name under the root, with ``.zarr`` or without, or by its address; raises `NotARun`."""
    return Run(find_run(run, root))


class Run:
    """A stored run as it was when it was opened, or last refreshed; `run["fc1.weight"]` is a tensor over rounds.

    What is recorded is read then, tensors and numbers when they are asked for.
    """

    def __init__(self, where: Where | Place) -> None:
        self._place = place_of(where)
        self.refresh()

    def refresh(self) -> Self:
        """Look again: the same view, with the rounds that came since."""
        self._store = RoundStore(self._place)
        told = checked_attributes(self._store.attributes, self._store.place)
        self._config, self._created = self._store.attributes["config"], told.created
        self._algorithm = recorded_name(self._config["algorithm"]["name"])
        self._attributes = {"algorithm": "", "data": asdict(told.data), "versions": {}} | self._store.attributes
        self._attributes["data"] = asdict(told.data) | self._attributes["data"]
        shelf = self._store.shelf
        self._rounds, self._done = shelf.rounds, shelf.newest
        self._damaged = [round for round in shelf.aside if round in self._rounds or round > self.done]
        self._lease = read_lease(self._place)
        self._commits: dict[int, Commit] = {}
        self._links: dict[int, Link] | None = None
        self._numbers: History | None = None
        return self

    @property
    def address(self) -> str:
        """Where it is, as text: a path, or ``scheme://…``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """Its folder; raises `UsageError` where it is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The run's name under its root."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was started with."""
        return dict(self._config)

    @property
    def algorithm(self) -> str:
        """The name of its algorithm, ``FILE.py:function`` of the user's; ``merge`` where networks were merged."""
        return self._algorithm

    @property
    def attributes(self) -> dict[str, Any]:
        """All that was recorded at its start: config, algorithm, data, fingerprint, versions."""
        return self._attributes

    @property
    def created(self) -> float:
        """Seconds since the epoch."""
        return self._created

    @property
    def rounds(self) -> int:
        """How many rounds it is to have, as who wrote last was told."""
        told = self._lease.rounds if self._lease else 0
        return max(told, self._done or 0) if told else self._store.rounds

    @property
    def partitions(self) -> int:
        """Into how many partitions its examples are split."""
        return self._store.schema.partitions

    @property
    def done(self) -> int:
        """The last round whose record is whole; 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The committed rounds whose records are whole, ascending; each record is verified."""
        return list(self._whole())

    @property
    def pruned(self) -> Pruned:
        """Of which rounds states and updates were let go, as it is recorded now."""
        return self._store.tensors.pruned()

    @property
    def absent(self) -> Pruned:
        """Of which rounds states and updates are not there: let go, or of states never stored."""
        pruned, links = self.pruned, self._whole()
        return replace(pruned, states=pruned.states | {round for round, link in links.items() if not link.stored})

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states are there."""
        return list(filter(self.absent.has_state, self.committed))

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole record; those after `done` are done again when the run goes on."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The digest of the last committed state."""
        return self._commit(self.done).state

    @property
    def chain(self) -> str:
        """The chain of the last record: this line vouches for the whole history."""
        return self._store.log.chain(self.done)

    @property
    def stop(self) -> str | None:
        """Why the run ended before its last round, None where it did not."""
        return self._commit(self.done).stop

    @property
    def failure(self) -> str | None:
        """Why the last writer of the run failed, None where it did not."""
        return self._lease.failure if self._lease else None

    @property
    def damaged(self) -> list[int]:
        """The rounds that were found damaged when the run went on, and were done again."""
        return self._damaged

    @property
    def status(self) -> str:
        """``complete``, ``running``, ``failed`` or ``interrupted``: read from the store alone."""
        if self._lease and self._lease.fresh:
            return "running"
        if self.done >= self.rounds or self.stop:
            return "complete"
        return "failed" if self.failure else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of its scores besides the loss."""
        paths = (path.partition("/") for path in self._history.paths())
        return [name for group, _, name in paths if group == "scores" and name != "loss"]

    @property
    def _history(self) -> History:
        """The numbers of all rounds."""
        if self._numbers is None:
            done = self.done
            rounds = [round for round in self._rounds if round <= done]
            self._numbers = History(self._store.log, self._store.schema, rounds)
        return self._numbers

    @property
    def tensors(self) -> list[str]:
        """The names that ``run[name]`` knows; a parameter or buffer may drop its group."""
        return list(self._store.schema.state(1))

    def verify(self, expect: str | None = None) -> Verification:
        """Read all of the run as it is now and compare it with its records, as `verify` does."""
        return verify(self._place, expect)

    def __getitem__(self, name: str) -> xr.DataArray:
        """A tensor over the rounds whose states are there.

        Args:
            name: One of `Run.tensors`; a parameter or buffer may drop its group.

        Returns:
            An array (round, *shape), read when its values are used, bfloat16 as float32. A frozen tensor has no
            rounds, (*shape), and is read at once.

        Raises:
            TensorMissing: The run stores no such tensor.

        Example:
            >>> run["fc1.weight"].sel(round=3)
        """
        absent = self.absent
        return self._arrays(list(filter(absent.has_state, self.committed)), absent).named(name)

    @property
    def ds(self) -> xr.Dataset:
        """State and numbers over the committed rounds, tensors being read when their values are used.

        Parameters, buffers, scores, metrics and bookkeeping have their own names, of which the first of two has
        the name; all else its path, as ``memory/velocity/fc1.weight``.
        """
        return self._arrays(self.committed, self.absent).data_set()

    @property
    def tree(self) -> xr.DataTree:
        """All that is stored over the committed rounds, in groups; tensors are read when their values are used.

        Beside the state and the numbers it has ``updates``, ``arrived`` (the buffers that partitions sent),
        ``extras``, ``carry``, ``permutations`` and ``similarities``, each (round, partition, …), and
        ``partitions``, which example went where.
        """
        return self._arrays(self.committed, self.absent).data_tree()

    def _arrays(self, rounds: list[int], absent: Pruned) -> Arrays:
        from storage.runs.arrays import Arrays  # a flow that only trains need not wait for xarray

        return Arrays(self.name, self._store, rounds, self._commit, absent)

    def history(self) -> pd.DataFrame:
        """A row for each committed round: loss and other scores, seconds, metrics, examples, accepted updates.

        A metric is the mean over the accepted updates that report it, weighted by their examples. Where its name
        is that of a score or of the bookkeeping, its column is ``map_<name>``.
        """
        return history_table(self._history)

    def arrivals(self) -> pd.DataFrame:
        """A row for each update that came to a parameter server, none where rounds waited for all partitions.

        Columns are round, partition, its turn, the row that it `began` from, staleness, whether it was accepted,
        seconds that its map took, and the worker.
        """
        return arrivals_table(map(self._commit, self.committed))

    def round(self, round: WhichRound) -> Round:
        """One committed round; negative numbers count from the end; raises `RoundMissing`, `UsageError`.

        ``"last"`` is the last one, ``"best"`` the one of best accuracy, of least loss where there is none.
        """
        which = which_round(str(round))
        if which == "best":
            return self.best("accuracy" if "accuracy" in self.scores else "loss")
        number = -1 if which == "last" else which
        return Round(self._store, self._commit(number if number >= 0 else self.done + 1 + number))

    def best(self, score: str = "loss", lowest: bool | None = None) -> Round:
        """The first round with the best score: of losses and errors the lowest, of others the highest.

        Of a score of your own `lowest` says which. Raises `UsageError` for one that the run has not,
        `RoundMissing` where no round was scored.
        """
        return self.round(best_round(self.history(), score, ["loss", *self.scores], lowest))

    def carried(self, round: WhichRound) -> dict[int, Update]:
        """What each partition keeps after a round, as the update that it came with."""
        sources = self.round(round).commit.carry_from.items()
        return {partition: self.round(source).update(partition) for partition, source in sources}

    def diff(self, first: int, second: int) -> pd.DataFrame:
        """How each tensor differs between two rounds: `norm`, `relative` to that of the first, and `cosine`."""
        return state_difference(self.round(first), self.round(second))

    def changes(self, rounds: Iterable[int] | None = None) -> pd.DataFrame:
        """How much rounds whose predecessor is among them changed each parameter, relative to its norm before.

        Without `rounds`, those whose states are there.
        """
        return state_changes(self._each(rounds, self.absent.has_state))

    def divergence(self, rounds: Iterable[int] | None = None) -> pd.DataFrame:
        """How far each accepted update lies from their weighted mean: a row a round, columns (measure, partition).

        Measures are `norm` of the difference, `relative` to the mean's, and `cosine`; NaN where none was accepted.
        Without `rounds`, those whose updates were not pruned.
        """
        return update_divergence(self._each(rounds, self.pruned.has_update), self.partitions)

    def _each(self, rounds: Iterable[int] | None, kept: Callable[[int], bool]) -> list[Round]:
        return [self.round(round) for round in (filter(kept, self.committed) if rounds is None else rounds)]

    def examples(self, partition: int, round: int = -1) -> pd.DataFrame:
        """The numbers of the examples that a partition has in a round, as the index of a table.

        Raises `UsageError` for a partition that there is not, `RoundMissing` where no split is kept.
        """
        import pandas as pd

        if not 0 <= partition < self.partitions:
            raise UsageError(f"run {self.name} has partitions 0 to {self.partitions - 1}, not {partition}")
        (examples,) = (self._store.splits.read(self.round(round).commit) == partition).nonzero()
        return pd.DataFrame(index=pd.Index(examples, name="example"))

    @property
    def plot(self) -> Plots:
        """What can be drawn of it: ``run.plot.history(ax=None)``, divergence, changes, refusals, staleness."""
        return Plots(self)

    def __repr__(self) -> str:
        return printable(f"<Run {self.name} · {self.status} · {self._told()}>")

    def _repr_html_(self) -> str:
        names = {field: recorded_name(self.config[field]) for field in ("data", "model") if self.config.get(field)}
        last = {f"round {self.done}": " · ".join(score_parts(self._commit(self.done).score)) or "not scored"}
        facts = names | last | {"stopped": self.stop, "failed": self.failure, "place": self.address}
        return run_card(self.name, self.status, self._told(), facts, self._store.schema.layout)

    def _told(self) -> str:
        """What it is like, in a line."""
        return run_line(self._store, self.rounds, self.done, self.algorithm, self.pruned)

    def _whole(self) -> dict[int, Link]:
        """The whole records of the committed rounds, ascending."""
        if self._links is None:
            done = self.done
            self._links = self._store.log.links([round for round in self._rounds if round <= done])
        return self._links

    def _commit(self, round: int) -> Commit:
        """The record of a round, read once."""
        if round not in self._rounds:
            raise self._store.log.missing(round, self._rounds)
        if round not in self._commits:
            log, link = self._store.log, (self._links or {}).get(round)
            self._commits[round] = log.parsed(round, link) if link else log.read(round)
        return self._commits[round]
