"""Removing a run."""

from __future__ import annotations

from storage.hierarchy.documents import NAME
from storage.places.base import Place
from storage.rounds.lease import check_at_rest


def remove_run(place: Place) -> None:
    """Delete the run at a place; raises `RunBusy` while it is written.

    The description of its root goes first: what a killed removal leaves is no run.
    """
    check_at_rest(place)
    place.delete(NAME)
    place.delete("")
