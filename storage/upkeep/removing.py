"""Remove a stored run."""

from __future__ import annotations

from storage.hierarchy.documents import NAME
from storage.places.base import Place
from storage.rounds.lease import check_at_rest


def remove_run(place: Place) -> None:
    """Delete the run at a place; raises `RunBusy` while it is written.

    The root's ``zarr.json`` is deleted first, so that the rest of an interrupted removal does not count as a run.
    """
    check_at_rest(place)
    place.delete(NAME)
    place.delete("")
