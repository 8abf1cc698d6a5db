"""What Prefect keeps of a run of a parameter server beside what it keeps of every run."""

from __future__ import annotations

import base64
import json

from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

import roundweave as rw
from storage.runs.tables import worker_rows


def artifacts_of(name: str) -> dict[str, str]:
    """What is kept under a run's name, by kind."""
    with get_client(sync_client=True) as client:
        of_this = ArtifactFilter(key=ArtifactFilterKey(like_=f"{name}-%"))
        found = client.read_artifacts(artifact_filter=of_this)
    return {str(artifact.key).removeprefix(f"{name}-"): artifact.data for artifact in found}


def test_a_server_leaves_its_arrivals_as_a_table_and_their_staleness_as_a_plot() -> None:
    fields = {"model": "logistic", "executor": "inline", "rounds": 6}
    run = rw.train(rw.TrainConfig(algorithm="async_sgd", name="served", **fields))
    artifacts = artifacts_of("served")
    assert artifacts.keys() == {"progress", "history", "plot", "arrivals", "staleness"}
    assert json.loads(artifacts["arrivals"]) == worker_rows(run.arrivals())
    picture = artifacts["staleness"].partition("base64,")[2].rstrip(")")
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    rw.train(rw.TrainConfig(name="waited", **fields))
    assert artifacts_of("waited").keys() == {"progress", "history", "plot"}
