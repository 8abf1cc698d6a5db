"""A read-only view of a stored run: its attributes, its rounds, and how it stands. It never writes."""

from __future__ import annotations

from collections.abc import Callable
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

    By an alias it ends with the alias's round. Raises `NotARun` where there is no run, or its round is another one
    now. `roundweave.flows.stored.open_run` gives the same run with its network.
    """
    address, alias = locate(run, root)
    stored = StoredRun(address, until=alias.round if alias else None)
    if alias and alias.chain not in (None, stored.chain):
        raise NotARun(f"{run} was {alias.run}@{alias.round}, which is another round now; give it to a run again")
    return stored


Opener = Callable[[Where, Where | None], "StoredRun"]
"""Opens a run under a root, as `open_stored` does."""


class StoredRun:
    """A stored run as it was when it was opened or last refreshed.

    Commit records, tensors and numbers are read when they are asked for. `supply`, if there is one, gives what is
    not stored of rounds. The run ends with round `until`, if that is given.
    """

    def __init__(self, where: Where | Place, supply: Supply | None = None, until: int | None = None) -> None:
        self._place, self._supply, self.until = place_of(where), supply, until
        self.refresh()

    def refresh(self, until: int | None = None) -> Self:
        """Read the store again, up to the round `until` or to the newest one.

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
        """Where the run lies, as text: a path, or an address such as ``s3://bucket/runs/first.zarr``."""
        return self._store.address

    @property
    def path(self) -> Path:
        """The folder of the run. Raises `UsageError` where the run is not on a disk of this machine."""
        return self._store.path

    @property
    def name(self) -> str:
        """The name of the run under its root, without ``.zarr``."""
        return run_name(self.address)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with, as JSON values by field of `TrainConfig`."""
        return dict(self._attributes["config"])

    @property
    def algorithm(self) -> str:
        """The name of the algorithm: built in, your own as ``FILE.py:function``, or ``merge`` for a merge."""
        return recorded_name(self.config["algorithm"]["name"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything that was recorded at the start of the run, by name.

        Among these are ``config``, ``algorithm``, ``data`` (number, digest and classes of the examples),
        ``network``, ``fingerprint`` of the numerics and ``versions`` of installed packages.
        """
        return self._attributes

    @property
    def parent(self) -> str | None:
        """The stored round ``RUN@12``, or checkpoint, that the run began with; None where weights were drawn."""
        if parent := self._attributes.get("parent"):
            return f"{parent['run']}@{parent['round']}"
        start = self.config.get("start_from")
        if start is None or (stored := stored_round(start["reference"])) is None:
            return start and str(start["reference"])
        return f"{run_name(stored[0])}@{stored[1]}"

    @property
    def created(self) -> float:
        """When the run was created, in seconds since the epoch."""
        return float(self._attributes["created"])

    @property
    def rounds(self) -> int:
        """How many rounds the run is meant to have, according to the process that wrote it last."""
        return max(self._planned, self._done or 0)

    @property
    def partitions(self) -> int:
        """How many partitions the examples are split into."""
        return self._store.schema.partitions

    @property
    def done(self) -> int:
        """The newest round whose commit record is whole; 0 is the initial state."""
        if self._done is None:
            raise NotARun(f"{self.address} has no committed round; start the run again")
        return self._done

    @property
    def committed(self) -> list[int]:
        """The rounds up to `done` whose commit records are whole, ascending. All records are read and verified."""
        return list(self._whole())

    @property
    def pruned(self) -> Pruned:
        """The rounds whose states or updates were pruned, read from the store now.

        Raises `StoreDamaged` where the record of what was pruned is damaged.
        """
        return self._store.tensors.pruned()

    @property
    def absent(self) -> Pruned:
        """The rounds without a state or updates: those that were pruned, and what was never stored."""
        links = self._whole()
        pruned = with_unwritten(self._store.log, self.pruned, links)
        return replace(pruned, states=pruned.states | {round for round, link in links.items() if not link.stored})

    @property
    def kept(self) -> list[int]:
        """The committed rounds whose states can be read, ascending."""
        return list(filter(self.absent.has_state, self.committed))

    @property
    def lost(self) -> list[int]:
        """The rounds without a whole commit record, ascending. Resuming trains those after `done` again."""
        before = set(range(self.done)) - set(self.committed)
        return sorted(before | {round for round in self._rounds if round > self.done})

    @property
    def digest(self) -> str:
        """The BLAKE3 digest of the state after the newest committed round, as 64 hexadecimal digits."""
        return self._commit(self.done).state

    @property
    def chain(self) -> str:
        """The chain of the newest commit record: 64 hexadecimal digits that cover the whole history of the run."""
        return self._store.log.chain(self.done)

    @property
    def stop(self) -> str | None:
        """Why training stopped before the last planned round; None where it did not."""
        ended = self.section(ENDING)
        return self._commit(self.done).stop or (f"{ended['by']}: {ended['why']}" if ended else None)

    @property
    def failure(self) -> str | None:
        """The error that ended the last process that wrote the run; None where it did not fail."""
        return self._lease.failure if self._lease else None

    @property
    def judgement(self) -> Judgement | None:
        """What was judged of the newest round: whether it is ``accepted``, and the ``reasons``."""
        judged = self.section(JUDGEMENT)
        return Judgement(**judged) if judged else None

    def section(self, name: str, round: int = -1) -> Any:
        """What a plugin wrote of a round in the section of this name, JSON; None where nothing was."""
        at = round if round >= 0 else self.done + 1 + round
        return read_section(self._place, name, at, self._store.log.chain(at)) if self._store.has_sections else None

    def write_section(self, name: str, content: Any) -> None:
        """Write JSON as a section of the newest round; raises `UsageError` for a name that no section can have."""
        write_section(self._place, name, self.done, self.chain, content)
        self._store.has_sections = True

    @property
    def columns(self) -> ColumnsRecord | None:
        """What is recorded of the columns of the examples, read now; None where a run recorded nothing of them."""
        return read_columns(self._place, self._attributes)

    @property
    def damaged(self) -> list[int]:
        """The rounds whose damaged records were quarantined when the run was resumed."""
        return [round for round in self._store.quarantined if round in self._rounds or round > self.done]

    @property
    def status(self) -> str:
        """``complete``, ``rejected``, ``running``, ``failed`` or ``interrupted``, as the store alone tells it.

        A run counts as running for up to 30 seconds after a writer on another machine was killed. One that awaits
        sections is complete when they are written. One that was rejected before its first round stays so.
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
        """The paths of all tensors of the state, such as ``params/fc1.weight``, as ``run[path]`` takes them.

        ``run[name]`` also takes the name of a parameter or buffer without its group, such as ``fc1.weight``.
        """
        return list(self._store.schema.state(1))

    def _whole(self) -> dict[int, Link]:
        """The verified commit records up to `done`, ascending by round; they are read once."""
        if self._links is None:
            self._links = self._store.log.links([round for round in self._rounds if round <= self.done])
        return self._links

    def _commit(self, round: int) -> Commit:
        """The commit record of a round, which is read once. Raises `RoundMissing` and `StoreDamaged`."""
        if round not in self._rounds:
            raise self._store.log.missing(round, self._rounds)
        if round not in self._commits:
            log, link = self._store.log, (self._links or {}).get(round)
            self._commits[round] = log.parsed(round, link) if link else log.read(round)
        return self._commits[round]

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
        return self._history.history()

    @property
    def totals(self) -> Totals:
        """What a list of runs says of all rounds, read in a fraction of the time that `history` takes."""
        return self._history.totals()

    def round(self, round: WhichRound) -> Round:
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
        which = which_round(str(round))
        if which == "best":
            return self.best(self.config.get("best") or self.ranked_by)
        number = -1 if which == "last" else which
        number = number if number >= 0 else self.done + 1 + number
        return Round(self._store, self._commit(number), self._network)

    @property
    def result(self) -> Round:
        """The round that the run hands out: the best one if the configuration has `best`, else the last one."""
        return self.round("best" if self.config.get("best") and self._attributes["data"]["held_out"] else "last")

    @property
    def ranked_by(self) -> str:
        """The score that ``round("best")`` goes by: the configured one, or else ``accuracy``, or ``loss``."""
        scored = "accuracy" if "accuracy" in self.scores else "loss"
        return ranking(self.config.get("best") or scored)[0]

    def best(self, score: str | None = None, lowest: bool | None = None) -> Round:
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
        return self.round(self._history.best(score or self.config.get("best") or "loss", lowest))

    def _network(self, trust: bool) -> nn.Module:
        """The network of the run with initial weights; the run that the facade opens builds it."""
        raise NotARun(f"{self.address} was opened without its network; open it by roundweave.open_run")

    def __repr__(self) -> str:
        # The bytes are those of rounds that each have as many updates as the last one.
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
