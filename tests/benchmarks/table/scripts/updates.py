"""One of those that `tests/benchmarks/speed/server.py` compares.

Arguments: the examples, its name, executor, what is stored.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.peers.recipes import tell
from tests.benchmarks.speed.server import contenders

SECONDS = 5.0
UPDATES = 600


def main(file: str, name: str, executor: str = "graph", keep: str = "all") -> None:
    """Tell of the milliseconds an update."""
    measured = contenders(Path(file), SECONDS, UPDATES, "async_sgd", {}, executor, keep)[name]
    tell(update=1e3 / measured())


if __name__ == "__main__":
    main(*sys.argv[1:])
