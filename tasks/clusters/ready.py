"""Imported by each local worker before it joins the scheduler; it imports torch and all that maps need."""

from tasks.imports import kept

with kept(own=True):
    import tasks.persistence.committing
    import tasks.persistence.mapping  # noqa: F401
