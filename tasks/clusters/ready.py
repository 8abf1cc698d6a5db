"""Imported by each local worker before it says that it is there: it brings torch and all that maps need."""

from tasks.imports import kept

with kept(own=True):
    import tasks.persistence.committing  # noqa: F401
