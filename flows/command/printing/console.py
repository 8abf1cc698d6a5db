"""Where the command prints: text as it is, and where it is read by another program as long as it is."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from storage.errors import printable

WIDE = 10_000
"""Columns where no terminal is, so that nothing is cut."""


class _Printed(Console):
    """Texts, also those in tables, are shown as they are: neither markup nor emoji, and nothing moves a cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options | {"markup": False})


def console(stderr: bool = False, wide: bool = True) -> Console:
    """Standard output, or standard error, for what comes from a store, a user's code, or a user.

    Prose need not be `wide` for a program.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = WIDE if wide and not terminal else None
    return _Printed(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)
