"""Remove whole runs, by name or those that fit: never one that is written, nor one that something else needs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

from roundweave.storage.errors import ForeignPlace, StoreError, UsageError, nearest
from roundweave.storage.parsing import config_field
from roundweave.storage.places.base import Where, join_address, scheme_of
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.commits import ranking
from roundweave.storage.rounds.lease import check_at_rest
from roundweave.storage.runs.listing import attributes_at, stored_bytes
from roundweave.storage.runs.names import RECORDED, default_root, kept_for_aliases, run_name, stored_names
from roundweave.storage.runs.run import StoredRun
from roundweave.storage.upkeep.pruning import is_half_removed, remove_run

YOUNGER = "it is younger than that"
"""Why a run stays that is not old enough."""

Runs = Mapping[str, StoredRun | StoreError]
"""Runs by their address, each as it is opened, or as the error why it cannot be."""


@dataclass(frozen=True)
class Removal:
    """A run that is to go, and how many bytes it has; `stays` says why it is not to go, if there is a reason."""

    address: str
    bytes: int = 0
    stays: str = ""

    @property
    def name(self) -> str:
        """The name of the run."""
        return run_name(self.address)


@dataclass(frozen=True)
class Eligible:
    """Which of some runs are to go.

    Those that began longer ago than so many seconds, if `older` is given. Of those that are complete, the `best`
    so many stay, by the score `by` of their last round, whatever their age. Runs that cannot be opened stay, but
    for those that are `named`.
    """

    older: float | None = None
    best: int = 0
    by: str = "loss"
    named: Collection[str] = ()

    def removals(self, root: Where | None, runs: Runs) -> list[Removal]:
        """Return a removal for each of these runs. Raises `UsageError` for a score that none has."""
        needed, best = protected(root), self._best(runs)
        removals = []
        for address, run in runs.items():
            place = place_of(address)
            try:
                check_at_rest(place)
                stays = needed.get(run_name(address)) or self._stays(address, run, address in best)
            except StoreError as error:
                stays = str(error)
            size = 0 if stays else stored_bytes(place)
            removals.append(Removal(address, size, stays))
        return removals

    def _stays(self, address: str, run: StoredRun | StoreError, best: bool) -> str:
        """Return why a run that nothing else needs stays, empty if it goes; raises the error of a damaged one."""
        if not scheme_of(address) and Path(address).is_symlink():
            return f"{address} is a link to a run; delete the link, or give the path of the run"
        if isinstance(run, StoreError):
            finishes = is_half_removed(place_of(address)) or (address in self.named and not self.older)
            if not finishes or isinstance(run, ForeignPlace):
                raise run
            return ""
        if best:
            return f"it is one of the best {self.best} by {self.by}"
        if self.older and run.created > time.time() - self.older:
            return YOUNGER
        begun = address in self.named or run.done >= 0  # of a run without a whole record it raises the error
        return "" if begun else "it has no round"

    def _best(self, runs: Runs) -> list[str]:
        """Return the addresses of the complete runs with the best score.

        One that leaves out examples comes last.
        """
        (by, lower), ranked, names = ranking(self.by), list[tuple[int, float, str]](), {"loss"}
        for address, run in runs.items() if self.best else ():
            if isinstance(run, StoredRun) and is_complete(run) and (score := run.round(-1).score):
                names |= score.values.keys()
                value = score.numbers.get(by)
                if value is not None and not isnan(value):
                    ranked.append((score.left_out, value if lower else -value, address))
        if self.best and by not in names:
            hint = nearest(by, names, f"there are {', '.join(sorted(names))}")
            raise UsageError(f"no complete run has the score {by!r}; {hint}")
        return [address for *_, address in sorted(ranked)[: self.best]]


def is_complete(run: StoredRun) -> bool:
    """Tell whether a run has all its rounds; not if it cannot be told."""
    try:
        return run.status == "complete"
    except StoreError:
        return False


def protected(root: Where | None) -> dict[str, str]:
    """Return why runs under a root are not removed, by name: those that other stored runs need to go on.

    What a run begins with it stores itself, with the outer optimizer's memory and the carries; so a fork needs no
    parent. But the order of the updates of a parameter server may be the one that another run has recorded.
    """
    root = root or default_root()
    needed = {}
    for name in stored_names(root):
        order = str(config_field(attributes_at(address := join_address(root, name)), "order"))
        if not order.startswith(RECORDED):
            continue
        with suppress(StoreError):
            if not is_complete(StoredRun(address)):
                other = run_name(order.removeprefix(RECORDED))
                needed[other] = f"{run_name(name)} needs it to go on, in its recorded order"
    return needed | kept_for_aliases(root)


def remove(removals: Iterable[Removal]) -> Iterator[Removal]:
    """Remove what is to go, one run after the other, and give it; with why it stays where that is so by now."""
    for removal in removals:
        try:
            if not removal.stays:
                remove_run(place_of(removal.address))
            yield removal
        except StoreError as error:
            yield replace(removal, bytes=0, stays=str(error))
