"""Who computes again what of a run's rounds is not stored: storage knows neither networks nor data."""

from collections.abc import Callable
from typing import Any

recompute: Callable[[Any, int], Any] | None = None
"""Called with a `RunFacts` and the number of a round, gives its `Recomputed`. The facade sets it."""
