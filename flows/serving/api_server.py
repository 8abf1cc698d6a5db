"""Prefect's API server as a process of its own, which runs this file and imports nothing else of the project.

Its settings come by the environment; it prints its port, and it ends when its standard input does, so it cannot
outlive the process that started it, however that one ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    # Bound before the slow imports: a request waits in the backlog until the server accepts it.
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    # Two servers that make the same new database at once would trip over one another.
    with Path(os.environ["PREFECT_HOME"], "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Thread(target=_unlock_when_started, args=(server, lock.fileno()), daemon=True).start()
        server.run(sockets=[listener])


def _unlock_when_started(server: Any, lock: int) -> None:
    while not server.started:
        time.sleep(0.05)
    fcntl.flock(lock, fcntl.LOCK_UN)


def _end_with_parent() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(5)
    os._exit(1)


if __name__ == "__main__":
    main()
