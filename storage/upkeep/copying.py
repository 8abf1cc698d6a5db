"""Copy a run that nobody writes to any place, and verify the copy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from roundweave.storage.errors import PlaceTaken, RunBusy, StoreDamaged
from roundweave.storage.hierarchy.chunks import checked_chunk
from roundweave.storage.places.addresses import full_address
from roundweave.storage.places.base import PARTIAL, Place
from roundweave.storage.rounds.lease import Lease, check_at_rest, read_lease
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.verifying.records import HALF_WRITTEN
from roundweave.storage.upkeep.verifying.verify import verify

Step = Callable[[int, int], None]
"""A function that is called with the number of bytes copied so far, and that of all."""


THREADS = 8
"""How many contents are copied at once, as each request to a distant place takes a while. Each is in memory."""


def copy_run(store: RoundStore, target: Place, step: Step = lambda done, total: None) -> str:
    """Copy a run to an empty place; returns the chain of its last record, which the copy has as well.

    Everything is verified before the copy appears, all at once. `step` is called after each content. Raises
    `PlaceTaken` where something is at the target or the target is in the run, `RunBusy` while the run is written,
    and `StoreDamaged` where it is not whole.
    """
    if full_address(str(target)).startswith(f"{full_address(str(store.place))}/"):
        raise PlaceTaken(f"{target} lies in the run itself; give the copy another place")
    if target.names():
        raise PlaceTaken(f"{target} exists already; give the copy another place")
    before = _at_rest(store)
    with target.aside() as aside:
        _copy_contents(store, aside, step)
        if _at_rest(store) != before:
            raise RunBusy(f"{store.place} was written while it was copied; copy it again")
        _check_whole(store.place, aside)
        aside.sync()
    target.sync()
    return before[0]


def _check_whole(source: Place, copy: Place) -> None:
    """Raise `StoreDamaged` where verifying a copy finds anything; its source must have the same damage."""
    findings = verify(copy).findings
    if findings:
        more = f", and {len(findings) - 1} more files" if len(findings) > 1 else ""
        raise StoreDamaged(
            f"{source}/{findings[0]}{more}; `roundweave verify` lists what is damaged, mend the run first"
        )


def _at_rest(store: RoundStore) -> tuple[str, Lease | None]:
    """The chain of the last record and the last writer's claim; raises `RunBusy` while the run is written."""
    check_at_rest(store.place)
    return store.log.chain(store.log.last()), read_lease(store.place)


def _copy_contents(store: RoundStore, target: Place, step: Step) -> None:
    sizes = {key: size for key, size in store.place.sizes().items() if not _is_partial(key)}
    done, total = 0, sum(sizes.values())
    with ThreadPoolExecutor(THREADS) as pool:
        for size in pool.map(partial(_copy_content, store, target), sizes):
            done += size
            step(done, total)


def _copy_content(store: RoundStore, target: Place, key: str) -> int:
    """Copy one content, read it back to compare it, and return its size in bytes."""
    source = store.place
    content = source.read(key)
    if content is None:
        raise RunBusy(f"{source}/{key} was deleted while the run was copied; copy it again")
    spec = store.tensors.arrays.get(key.rpartition("/c/")[0])
    if _is_chunk(key) and (spec is None or spec.shard == 1):  # the copy of a shard is verified later
        checked_chunk(content, len(content), f"{source}/{key}")
    target.write(key, content)
    if target.read(key) != content:
        raise StoreDamaged(f"{target}/{key} does not come back as it was written; is the place sound?")
    return len(content)


def _is_partial(key: str) -> bool:
    return key.endswith(PARTIAL) or HALF_WRITTEN.fullmatch(key) is not None


def _is_chunk(key: str) -> bool:
    """Whether a key is that of a chunk, which ends in a checksum."""
    path, _, numbers = key.rpartition("/c/")
    return key.endswith("/c") or (bool(path) and all(map(str.isdecimal, numbers.split("/"))))
