"""A verified copy of a run at rest, in any place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from storage.errors import PlaceTaken, RunBusy, StoreDamaged
from storage.hierarchy.chunks import checked
from storage.places.base import PARTIAL, Place
from storage.rounds.lease import Lease, check_at_rest, read_lease
from storage.rounds.store import RoundStore
from storage.upkeep.verifying.verify import verify

Step = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


THREADS = 8
"""So many contents are copied at once, as places far away take their time for each; each is in memory."""


def copy_run(store: RoundStore, target: Place, step: Step = lambda done, total: None) -> str:
    """Copy a run to a place where nothing is; the chain of its last record, which both have.

    All is verified before the copy is there, which it is at once or never. Raises `PlaceTaken`, `RunBusy` while
    the run is written, and `StoreDamaged` where it is not whole.
    """
    if target.names():
        raise PlaceTaken(f"{target} exists already; give the copy another place")
    before = _at_rest(store)
    with target.aside() as aside:
        _copy_contents(store.place, aside, step)
        if _at_rest(store) != before:
            raise RunBusy(f"{store.place} was written while it was copied; copy it again")
        _check_whole(store.place, aside)
        aside.sync()
    target.sync()
    return before[0]


def _check_whole(source: Place, copy: Place) -> None:
    """Raise `StoreDamaged` where anything is found in a copy, which is as its source is."""
    found = verify(copy).findings
    if found:
        more = f", and {len(found) - 1} more files" if len(found) > 1 else ""
        raise StoreDamaged(
            f"{source}/{found[0]}{more}; `roundweave verify` lists what is damaged, mend the run first"
        )


def _at_rest(store: RoundStore) -> tuple[str, Lease | None]:
    """The chain of the last record of a run that nobody writes, and the claim of who wrote it last."""
    check_at_rest(store.place)
    return store.log.chain(store.log.newest()), read_lease(store.place)


def _copy_contents(source: Place, target: Place, step: Step) -> None:
    sizes = {key: size for key, size in source.sizes().items() if not key.endswith(PARTIAL)}
    done, total = 0, sum(sizes.values())
    with ThreadPoolExecutor(THREADS) as pool:
        for size in pool.map(partial(_copy_content, source, target), sizes):
            done += size
            step(done, total)


def _copy_content(source: Place, target: Place, key: str) -> int:
    """Copy one content, which must come back as it was read; its bytes."""
    content = source.read(key)
    if content is None:
        raise RunBusy(f"{source}/{key} was deleted while the run was copied; copy it again")
    if _is_chunk(key):
        checked(content, len(content), f"{source}/{key}")
    target.write(key, content)
    if target.read(key) != content:
        raise StoreDamaged(f"{target}/{key} does not come back as it was written; is the place sound?")
    return len(content)


def _is_chunk(key: str) -> bool:
    """Whether what is at a key ends in a checksum of all before it."""
    path, _, numbers = key.rpartition("/c/")
    return key.endswith("/c") or (bool(path) and all(map(str.isdecimal, numbers.split("/"))))
