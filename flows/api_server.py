"""Prefect's API server as a process of its own: ``python -m flows.api_server``.

Its settings come by the environment; it prints its port, and it ends when its standard input does, so it cannot
outlive the process that started it, however that one ends.
"""

import os
import signal
import socket
import threading


def main() -> None:
    """Serve until standard input ends."""
    # Bound before the slow imports: a request waits in the backlog until the server accepts it.
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=True, final=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


def _end_with_parent() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(5)
    os._exit(1)


if __name__ == "__main__":
    main()
