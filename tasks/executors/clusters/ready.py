"""Imported by each local worker before it joins the scheduler; it imports torch and all that maps need."""

from roundweave.tasks.own_code.imports import kept

with kept(own=True):
    import roundweave.tasks.rounds.persistence.committing
    import roundweave.tasks.rounds.persistence.mapping  # noqa: F401
