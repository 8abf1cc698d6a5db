"""Where the command prints: text as it is, and where it is read by another program as long as it is."""

from __future__ import annotations

from rich.console import Console

WIDE = 10_000
"""Columns where no terminal is, so that nothing is cut."""


def console(wide: bool = True) -> Console:
    """Standard output; brackets in texts of the user's are no markup. Prose need not be `wide` for a program."""
    out = Console(highlight=False, markup=False)
    return out if out.is_terminal or not wide else Console(highlight=False, markup=False, width=WIDE)
