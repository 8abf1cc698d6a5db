"""Copy a run that nobody writes to any place, and verify the copy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from roundweave.storage.errors import PlaceTaken, RunBusy, StoreDamaged
from roundweave.storage.places.base import PARTIAL, Place, full_address
from roundweave.storage.rounds.lease import Lease, check_at_rest, read_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.verifying.records import HALF_WRITTEN
from roundweave.storage.upkeep.verifying.verify import verify

THREADS = 8
"""How many contents are copied at once, as each request to a distant place takes a while. Each is in memory."""


def copy_run(store: RoundStore, target: Place) -> str:
    """Copy a run to an empty place; returns the chain of its last record, which the copy has as well.

    The copy is verified before it appears, all at once. Raises `PlaceTaken` if something is at the target or the
    target is in the run, `RunBusy` while the run is written, and `StoreDamaged` if the copy is not whole.
    """
    if full_address(str(target)).startswith(f"{full_address(str(store.place))}/"):
        raise PlaceTaken(f"{target} lies in the run itself; give the copy another place")
    if target.names():
        raise PlaceTaken(f"{target} exists already; give the copy another place")
    before = _at_rest(store)
    with target.aside() as aside:
        _copy_contents(store.place, aside)
        if _at_rest(store) != before:
            raise RunBusy(f"{store.place} was written while it was copied; copy it again")
        if findings := verify(aside).findings:
            raise StoreDamaged(
                f"the copy of {store.place} is not whole: {findings[0]}; `roundweave verify` lists all that is "
                "damaged in the run, and where nothing is, copy it again"
            )
        aside.sync()
    target.sync()
    return before[0]


def _at_rest(store: RoundStore) -> tuple[str, Lease | None]:
    """Return the chain of the last record and the last writer's claim.

    Raises `RunBusy` while the run is written.
    """
    check_at_rest(store.place)
    return store.log.chain(store.log.last()), read_lease(store.place)


def _copy_contents(source: Place, target: Place) -> None:
    """Copy all contents but half-written ones."""

    def copy(key: str) -> None:
        content = source.read(key)
        if content is None:
            raise RunBusy(f"{source}/{key} was deleted while the run was copied; copy it again")
        target.write(key, content)

    whole = (key for key in source.sizes() if not (key.endswith(PARTIAL) or HALF_WRITTEN.fullmatch(key)))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, whole))
