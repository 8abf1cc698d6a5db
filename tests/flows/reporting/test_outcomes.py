"""How a training ended, as events of Prefect, and what an automation of the user's makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import roundweave as rw
from tests.flows.prefect_server import PrefectServer, until
from tests.test_docs import HERE, blocks

NIGHTS = """
import roundweave as rw

small = {"model": "logistic", "partitions": 2, "local_steps": 9, "executor": "inline", "rounds": 1}
rw.train(rw.TrainConfig(name="first", **small))
rw.train(rw.TrainConfig(name="worse", **small | {"start_from": "first@-1", "lr": 1e3}))
rw.train(rw.TrainConfig(name="no", accept="loss <= 0", **small))
try:
    rw.train(rw.TrainConfig(name="fails", **small | {"lr": 1e38}))
except rw.RoundweaveError as error:
    print(error)
"""


@pytest.fixture
def calls() -> Iterator[tuple[str, list[Any]]]:
    """The address of an HTTP server, and what was posted to it."""
    posted: list[Any] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Takes) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}/", posted
        listener.shutdown()


def test_an_automation_calls_a_webhook_of_each_end(server: PrefectServer, tmp_path: Path, calls) -> None:
    """The page's recipe, with the address of a server that is there."""
    address, posted = calls
    page = blocks(HERE / "docs/scheduling.md")
    (recipe,) = [block.text for block in page if "CallWebhook" in block.text]
    (tmp_path / "webhook.py").write_text(recipe.replace("https://example.org/nights", address))
    (tmp_path / "nights.py").write_text(NIGHTS)
    own = server.environment | {"PREFECT_API_URL": server.api, "ROUNDWEAVE_ROOT": str(tmp_path / "runs")}
    line = [sys.executable, "webhook.py"]
    subprocess.run(line, env=own, cwd=tmp_path, check=True)
    line = [sys.executable, "nights.py"]
    failure = subprocess.run(line, env=own, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    until(lambda: len(posted) == 5)
    told = {
        (call["event"].removeprefix("roundweave.run."), call["facts"]["run"]): call["facts"] for call in posted
    }
    assert told.keys() == {
        ("completed", "first"),
        ("completed", "worse"),
        ("degraded", "worse"),
        ("rejected", "no"),
        ("failed", "fails"),
    }
    runs = {name: rw.open_run(tmp_path / f"runs/{name}.zarr") for name in ("first", "worse", "fails")}
    worse, score = told["degraded", "worse"], runs["worse"].round(1).score
    assert worse == {
        "run": "worse",
        "address": str(tmp_path / "runs/worse.zarr"),
        "root": str(tmp_path / "runs"),
        "rounds": 1,
        "of_rounds": 1,
        "loss": score.loss,
        "scores": {"accuracy": score.accuracy},
        "digest": runs["worse"].digest,
        "parent": "first@1",
        "reasons": [],
        "failure": None,
    }
    assert told["rejected", "no"]["reasons"][0].startswith("loss <= 0: ")
    assert worse["loss"] > runs["first"].round(1).score.loss
    assert told["failed", "fails"]["failure"] == f"RoundFailed: {failure.strip()}"
    assert (told["failed", "fails"]["rounds"], told["completed", "first"]["parent"]) == (0, None)
