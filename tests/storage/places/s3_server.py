"""A server of S3 in a process of its own (moto), and the environment in which it is found."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SECRET = "kept-from-records-and-logs-7Qx"

SERVER = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple

application, alone = DomainDispatcherApplication(create_backend_app), threading.Lock()
application.debug = True

def one_by_one(environ, start_response):
    with alone:
        return [b"".join(application(environ, start_response))]

run_simple("127.0.0.1", int(sys.argv[1]), one_by_one, threaded=True, request_handler=MotoRequestHandler)
"""
"""Requests are answered one after the other: moto asks whether an object exists before it writes it, and could
write both of two at once, which S3 never does."""


@dataclass(frozen=True)
class S3Server:
    """A server that is up; `environment` is what its users need."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """The address of a new bucket."""
        name = f"bucket-{secrets.token_hex(6)}"
        url = f"http://127.0.0.1:{self.port}/{name}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
        return f"s3://{name}"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server of this machine, without any contents; a page of a list has 100 names."""
    port = free_port()
    own = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    own |= {"MOTO_PORT": str(port), "MOTO_S3_DEFAULT_MAX_KEYS": "100"}
    command, quiet = [sys.executable, "-c", SERVER, str(port)], subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=own)
    try:
        _wait(process, port)
        yield S3Server(port)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server of S3 did not start")
