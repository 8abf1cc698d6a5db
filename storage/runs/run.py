"""A read-only view of a stored run: its attributes, its rounds and its status. The view never writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from roundweave.storage.errors import NotARun, printable
from roundweave.storage.places.base import Place, Where
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.columns import ColumnsRecord, read_columns
from roundweave.storage.rounds.commits import (
    ENDING,
    JUDGEMENT,
    Commit,
    Judgement,
    ranking,
    read_section,
    write_section,
)
from roundweave.storage.rounds.lease import read_lease
from roundweave.storage.rounds.log import Link
from roundweave.storage.rounds.numbers import Numbers, Totals
from roundweave.storage.rounds.pruned import Pruned, with_unwritten
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.rounds.tensors import Supply
from roundweave.storage.runs.names import WhichRound, locate, recorded_name, run_name, stored_round, which_round
from roundweave.storage.runs.records import checked_attributes
from roundweave.storage.runs.round import Round

if TYPE_CHECKING:
    import pandas as pd


def open_stored(run: Where, root: Where | None = None) -> StoredRun:
    """Open a stored run by its name under the root, with or without ``.zarr``, or by its address.

    An alias opens its run up to the round of the alias. `roundweave.flows.stored.open_run` opens the same run
    together with its network. Raises `NotARun` if the run does not exist, or if the round of the alias has
    changed.
    """
    address, alias = locate(run, root)
    stored = StoredRun(address, until=alias.round if alias else None)
    if alias and alias.chain not in (None, stored.chain):
        raise NotARun(f"{run} was {alias.run}@{alias.round}, and that round has changed; give it to a run again")
    return stored


Opener = Callable[[Where, Where | None], "StoredRun"]
"""A function that opens a run under a root, as `open_stored` does."""


class StoredRun:
    """A stored run, as it was when it was opened or refreshed.

    Commit records, tensors and numbers are read on demand. `supply` computes the tensors of rounds that are not
    stored; None leaves them missing. The run ends with round `until`, if that is given.
    """

    def __init__(self, where: Where | Place, supply: Supply | None = None, until: int | None = None) -> None:
        self._place, self._supply, self.until = place_of(where), supply, until
        self.refresh()

    def refresh(self, until: int | None = None) -> Self:
        """Read the store again, up to the round `until` or to the newest round.

        Returns:
            This run itself.

        Raises:
            NotARun: The run is gone, or its attributes are damaged.
            StoreDamaged: No commit record belongs to the run's attributes.

        Example:
            >>> run.refresh().done
        """
        self._store = RoundStore(self._place)
        self._store.supply = self._supply
        checked = checked_attributes(self._store.attributes, self._store.place)
        self._attributes = {"algorithm": "", "data": asdict(checked.data), "versions": {}} | self._store.attributes
        self._attributes["data"] = asdict(checked.data) | self._attributes["data"]
        last = self.until if until is None else until
        self._rounds = [round for round in self._store.records if last is None or round <= last]
        self._done = self._store.newest if last is None else min(self._store.newest or 0, last)
        self._lease = read_lease(self._place) if self.until is None else None
        planned = (self._lease and self._lease.rounds) or self._store.rounds
        self._planned = planned if self.until is None else self.until
        self._commits: dict[int, Commit] = {}
        self._links: dict[int, Link] | None = None
        self._numbers: Numbers | None = None
        return self

    @property
    def address(self) -> str:
        """The place of the run as text: a path, or an address such as ``s3://bucket/runs/first.zarr``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """The folder of the run. Raises `UsageError` if the run is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The name of the run under its root, without ``.zarr``."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with: JSON values by field of `TrainConfig`."""
        return dict(self._attributes["config"])

    @property
    def algorithm(self) -> str:
        """The name of the algorithm: a built-in name, your own ``FILE.py:function``, or ``merge`` for a merge."""
        return recorded_name(self.config["algorithm"]["name"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that was recorded at the start of the run, by name.

        Examples are ``config``, ``algorithm``, ``data`` (number, digest and classes of the examples), ``network``,
        ``fingerprint`` of the numerics, and ``versions`` of installed packages.
        """
        return self._attributes

    @property
    def parent(self) -> str | None:
        """The stored round ``RUN@12`` or checkpoint that gave the first weights; None if they were drawn."""
        if parent := self._attributes.get("parent"):
            return f"{parent['run']}@{parent['round']}"
        start = self.config.get("start_from")
        if start is None or (stored := stored_round(start["reference"])) is None:
            return start and str(start["reference"])
        return f"{run_name(stored[0])}@{stored[1]}"

    @property
    def created(self) -> float:
        """The time at which the run was created, in seconds since the epoch."""
        return float(self._attributes["created"])

    @property
    def rounds(self) -> int:
        """The number of planned rounds, according to the last process that wrote the run."""
        return max(self._planned, self._done or 0)

    @property
    def partitions(self) -> int:
        """The number of partitions of the examples."""
        return self._store.schema.partitions

    @property
    def partition_names(self) -> Sequence[int | str]:
        """The name of each partition, such as the hospital in ``by:hospital``; its number if it has no name."""
        return self._store.partition_names

    def find_partition(self, given: int | str) -> int:
        """Return the number of a partition, given its number or name. Raises `UsageError` for an unknown one."""
        return self._store.find_partition(given)

    @property
    def done(self) -> int:
        """The newest round with a whole commit record. Round 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The rounds up to `done` with whole commit records, ascending. All records are read and verified."""
        return list(self._whole())

    @property
    def pruned(self) -> Pruned:
        """The rounds with pruned states or updates, read from the store now.

        Raises `StoreDamaged` if the record of pruned rounds is damaged.
        """
        return self._store.tensors.pruned()

    @property
    def absent(self) -> Pruned:
        """The rounds without a state or updates, because they were pruned or never stored."""
        links = self._whole()
        pruned = with_unwritten(self._store.log, self.pruned, links)
        return replace(pruned, states=pruned.states | {round for round, link in links.items() if not link.stored})

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states can be read, ascending."""
        return list(filter(self.absent.has_state, self.committed))

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole commit record, ascending. `resume` trains those after `done` again."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The BLAKE3 digest of the state after the newest committed round: 64 hexadecimal digits."""
        return self._commit(self.done).state

    @property
    def chain(self) -> str:
        """The chain of the newest commit record: 64 hexadecimal digits that vouch for the whole history."""
        return self._store.log.chain(self.done)

    @property
    def stop(self) -> str | None:
        """Why training stopped before the last planned round; None if training did not stop early."""
        ended = self.section(ENDING)
        return self._commit(self.done).stop or (f"{ended['by']}: {ended['why']}" if ended else None)

    @property
    def failure(self) -> str | None:
        """The error that ended the last process that wrote the run; None if there was no error."""
        return self._lease.failure if self._lease else None

    @property
    def judgement(self) -> Judgement | None:
        """The judgement of the newest round: whether it is ``accepted``, and the ``reasons``."""
        judged = self.section(JUDGEMENT)
        return Judgement(**judged) if judged else None

    def section(self, name: str, round: int = -1) -> Any:
        """Return the JSON that a plugin wrote for a round in the section of this name; None if there is none."""
        at = round if round >= 0 else self.done + 1 + round
        return read_section(self._place, name, at, self._store.log.chain(at)) if self._store.has_sections else None

    def write_section(self, name: str, content: Any) -> None:
        """Write JSON as a section of the newest round. Raises `UsageError` for an invalid name of a section."""
        write_section(self._place, name, self.done, self.chain, content)
        self._store.has_sections = True

    @property
    def columns(self) -> ColumnsRecord | None:
        """The recorded description of the columns of the examples, read now; None if the run recorded none."""
        return read_columns(self._place, self._attributes)

    @property
    def damaged(self) -> list[int]:
        """The rounds whose damaged records were quarantined when the run was resumed."""
        return [round for round in self._store.quarantined if round in self._rounds or round > self.done]

    @property
    def status(self) -> str:
        """The status: ``complete``, ``rejected``, ``running``, ``failed`` or ``interrupted``.

        The status comes from the store alone. A run counts as running for up to 30 seconds after its writer on
        another machine was killed. A run that awaits sections of plugins is complete once they are written. A run
        that was rejected before its first round stays rejected.
        """
        if self._lease and self._lease.fresh:
            return "running"
        if not self.done and (judgement := self.judgement) and not judgement.accepted:
            return "rejected"
        if self.done >= self.rounds or self.stop:
            if judgement := self.judgement:
                return "complete" if judgement.accepted else "rejected"
            if self.until is not None or all(self.section(name) for name in self._attributes.get("awaits", ())):
                return "complete"
        return "failed" if self.failure else "interrupted"

    @property
    def scores(self) -> list[str]:
        """The names of the scores besides the loss, such as ``accuracy``."""
        return self._history.names("scores")

    @property
    def _history(self) -> Numbers:
        """The numbers of all rounds up to `done`, read once."""
        if self._numbers is None:
            self._numbers = Numbers.read(self._store.log, [round for round in self._rounds if round <= self.done])
        return self._numbers

    @property
    def tensors(self) -> list[str]:
        """The paths of all tensors of the state, such as ``params/fc1.weight``. ``run[path]`` reads one.

        ``run[name]`` also takes the name of a parameter or buffer without its group, such as ``fc1.weight``.
        """
        return list(self._store.schema.state(1))

    def _whole(self) -> dict[int, Link]:
        """Return the verified commit records up to `done`, ascending by round, read once."""
        if self._links is None:
            self._links = self._store.log.links([round for round in self._rounds if round <= self.done])
        return self._links

    def _commit(self, round: int) -> Commit:
        """Return the commit record of a round, read once. Raises `RoundMissing` and `StoreDamaged`."""
        if round not in self._rounds:
            raise self._store.log.missing(round, self._rounds)
        if round not in self._commits:
            log, link = self._store.log, (self._links or {}).get(round)
            self._commits[round] = log.parsed(round, link) if link else log.read(round)
        return self._commits[round]

    def history(self) -> pd.DataFrame:
        """Return the numbers of all committed rounds as a table.

        Returns:
            One row for each round, with the number of the round as index. The columns are ``loss`` and the other
            scores on the held-out examples, ``seconds``, the metrics of maps, and the counts ``examples``,
            ``accepted`` and ``refused``. A metric is the mean over the accepted updates that report it, weighted
            by their numbers of examples. A metric whose name is taken has the column ``map_<name>``. NaN marks a
            number that a round does not have.

        Raises:
            NotARun: The run has no committed round.

        Example:
            >>> run.history()[["loss", "seconds"]].tail()
        """
        return self._history.history()

    @property
    def totals(self) -> Totals:
        """Return the numbers of the whole run that a list of runs shows, much faster than `history`."""
        return self._history.totals()

    def round(self, round: WhichRound) -> Round:
        """Return one committed round.

        Args:
            round: The number of the round, where negative numbers count from the end; ``"last"``; or ``"best"``.
                The best round follows `best` of the configuration, else the highest accuracy, else the lowest
                loss.

        Returns:
            The round. Its tensors are read on access.

        Raises:
            RoundMissing: The run has no such round.
            UsageError: `round` is neither a number nor one of the two words.

        Example:
            >>> run.round(3).params["fc1.weight"]
        """
        which = which_round(str(round))
        if which == "best":
            return self.best(self.config.get("best") or self.ranked_by)
        number = -1 if which == "last" else which
        number = number if number >= 0 else self.done + 1 + number
        return Round(self._store, self._commit(number), self._network)

    @property
    def result(self) -> Round:
        """The round that the run hands out: the best one if the configuration has `best`, else the last."""
        return self.round("best" if self.config.get("best") and self._attributes["data"]["held_out"] else "last")

    @property
    def ranked_by(self) -> str:
        """The score that ranks ``round("best")``: the configured one, else ``accuracy``, else ``loss``."""
        scored = "accuracy" if "accuracy" in self.scores else "loss"
        return ranking(self.config.get("best") or scored)[0]

    def best(self, score: str | None = None, lowest: bool | None = None) -> Round:
        """Return the first of the rounds with the best score.

        Args:
            score: ``"loss"``, or one of `Run.scores`, also as ``"max:f1"`` or ``"min:mine"``. The default is
                `best` of the configuration, or else the loss.
            lowest: Whether the lowest number is the best. The default is True for ``loss``, ``mae`` and
                ``perplexity``, also of the worst partitions (``worst_loss``), and for each ``spread_``. The
                default is False for other scores. Rounds that left examples out of a loss rank last.

        Returns:
            The round.

        Raises:
            UsageError: The run has no such score.
            RoundMissing: No round has the score.

        Example:
            >>> run.best("accuracy").number
        """
        return self.round(self._history.best(score or self.config.get("best") or "loss", lowest))

    def _network(self, trust: bool) -> nn.Module:
        """Return the network of the run with initial weights. The run of the facade overrides this method."""
        raise NotARun(f"{self.address} was opened without its network; open it by roundweave.open_run")

    def __repr__(self) -> str:
        # Assumes that each round has as many updates as the last one.
        tensors, schema, pruned = self._store.tensors, self._store.schema, self.pruned
        stored = tensors.kept_bytes(self.done, pruned, len(self._commit(self.done).updates))
        parts = (
            f"{self.name} · {self.status}",
            f"{self.done}/{self.rounds} rounds{' (1 uncommitted)' * tensors.has_row(self.done + 1)}",
            self.algorithm,
            f"{self.partitions} partitions",
            f"{sum(spec.size for spec in schema.layout.params):,} params",
            f"{stored / 1e6:.3g} MB{' (pruned)' * bool(pruned.rounds)}",
        )
        return printable(f"<Run {' · '.join(parts)}>")
