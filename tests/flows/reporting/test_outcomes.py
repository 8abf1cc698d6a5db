"""How a training ended, as events of Prefect, and what an automation of the user's makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundweave.storage.errors import RoundweaveError
from tests.flows.nights import trained
from tests.flows.prefect_server import listener, until
from tests.test_docs import HERE, blocks

pytestmark = pytest.mark.prefect


@pytest.mark.thorough
def test_an_automation_calls_a_webhook_of_each_end(tmp_path: Path) -> None:
    """The page's recipe, with the address of a server that is there."""
    (recipe,) = [block.text for block in blocks(HERE / "docs/how-to/schedule.md") if "CallWebhook" in block.text]
    with listener() as (address, posted):
        exec(recipe.replace("https://example.org/nights", f"{address}/"), {})
        runs = {"first": trained(name="first", rounds=1)}
        runs["worse"] = trained(name="worse", rounds=1, start_from="first@-1", lr=1e3)
        trained(name="no", rounds=1, accept="loss <= 0")
        with pytest.raises(RoundweaveError) as failure:
            trained(name="fails", rounds=1, lr=1e38, local_steps=9)
        until(lambda: len(posted) == 5)
    told = {(call["event"].rpartition(".")[2], call["facts"]["run"]): call["facts"] for call in posted}
    ends = {"completed first", "completed worse", "degraded worse", "rejected no", "failed fails"}
    assert {" ".join(key) for key in told} == ends
    worse, score = told["degraded", "worse"], runs["worse"].round(1).score
    wanted = {"run": "worse", "root": str(tmp_path / "runs"), "address": runs["worse"].address}
    wanted |= {"rounds": 1, "of_rounds": 1, "loss": score.loss, "scores": {"accuracy": score.accuracy}}
    wanted |= {"digest": runs["worse"].digest, "parent": "first@1", "reasons": [], "failure": None}
    assert worse == wanted
    assert told["rejected", "no"]["reasons"][0].startswith("loss <= 0: ")
    assert worse["loss"] > runs["first"].round(1).score.loss
    assert told["failed", "fails"]["failure"] == f"RoundFailed: {failure.value}"
    assert (told["failed", "fails"]["rounds"], told["completed", "first"]["parent"]) == (0, None)
