"""The plugins of this package, in the order in which their hooks are called; a missing folder is left out."""

from __future__ import annotations

PLUGINS = ("early_stopping", "gate", "exports")
"""The folders, each with a module ``plugin`` in which one subclass of `Plugin` is defined."""
