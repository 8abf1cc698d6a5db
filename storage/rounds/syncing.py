"""Sync a run every few seconds while it trains, to limit what a power loss may take without ``--fsync``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.store import RoundStore

SECONDS = 5.0
"""The seconds between two syncs. A power loss costs about the rounds of this time."""


class Syncing:
    """Syncs a store, and says which rounds are safe: all files of rounds up to `safe` survive a power loss.

    The writer sets `written` to the last commit.
    """

    def __init__(self, store: RoundStore, safe: Commit) -> None:
        self.store = store
        self.written = self.safe = safe

    def sync(self) -> None:
        """Sync everything that was written so far; raises `PlaceError`."""
        written, copied = self.written, self.store.numbers.last
        self.store.place.flush()
        self.store.numbers.seal(copied)
        self.safe = written

    def repeat(self, done: threading.Event) -> None:
        """Sync every `SECONDS` until `done` is set; raises `PlaceError`."""
        while not done.wait(SECONDS):
            self.sync()


@contextmanager
def synced(store: RoundStore, safe: Commit) -> Iterator[Syncing]:
    """A context in which a store is synced every few seconds, and once more at the end; raises `PlaceError`.

    `safe` is the last commit that is synced already. The writer's process syncs the whole file system, which
    includes what workers on its machine wrote. A list of files would have to come from all workers, and one sync
    of thousands of files is faster than a sync of each.
    """
    syncing, done = Syncing(store, safe), threading.Event()
    with ThreadPoolExecutor(1, "sync") as pool:
        repeated = pool.submit(syncing.repeat, done)
        try:
            yield syncing
        finally:
            done.set()
            repeated.result()
            syncing.sync()
