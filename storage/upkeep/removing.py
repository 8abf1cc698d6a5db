"""Removing a run."""

from __future__ import annotations

from storage.errors import RunBusy
from storage.hierarchy.documents import NAME
from storage.places.base import Place
from storage.rounds.lease import read_lease


def remove_run(place: Place) -> None:
    """Delete the run at a place; raises `RunBusy` while it is written.

    The description of its root goes first: what a killed removal leaves is no run.
    """
    lease = read_lease(place)
    if lease and lease.fresh:
        raise RunBusy(f"{place} is being written by process {lease.pid} on {lease.host}; stop it first")
    place.delete(NAME)
    place.delete("")
