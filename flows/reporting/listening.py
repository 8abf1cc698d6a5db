"""How a caller in this process follows a flow while it runs; needs no Prefect, so it can come before it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from storage.rounds.commits import Commit

Listener = Callable[[Commit, int], None]
"""Called with each commit and the number of rounds there are to be."""


listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
