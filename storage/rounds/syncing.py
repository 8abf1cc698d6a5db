"""Syncs beside the rounds: what a power loss may take of a run that is not synced round by round."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from storage.rounds.commits import Commit
from storage.rounds.store import RoundStore

SECONDS = 5.0
"""How often all that was written is synced: a power loss takes the rounds of about so long."""


class Syncing:
    """What a sync has reached: of all rounds up to `safe` every file survives a power loss."""

    def __init__(self, store: RoundStore, safe: Commit) -> None:
        self.store = store
        self.newest = self.safe = safe

    def sync(self) -> None:
        """Sync all that was written so far; raises `PlaceError`."""
        newest, copied = self.newest, self.store.numbers.last
        self.store.place.flush()
        self.store.numbers.seal(copied)
        self.safe = newest

    def repeat(self, done: threading.Event) -> None:
        """Sync every few seconds."""
        while not done.wait(SECONDS):
            self.sync()


@contextmanager
def synced(store: RoundStore, safe: Commit) -> Iterator[Syncing]:
    """Within, what is written is synced every few seconds, and at the end; raises `PlaceError` where it cannot be.

    The writer's process does it for the whole file system, and so for what workers of its machine write: a list of
    files would have to come from all of them, and one sync of thousands of files takes less than a sync of each.
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
