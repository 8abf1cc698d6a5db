"""The flow that replays: the windows of rounds as steps, a bar, and at the end a table on its page."""

from prefect import flow

from flows.evidence.replay.config import ReplayConfig
from flows.evidence.replay.preparing import plan_replay
from flows.evidence.replay.result import Replay
from flows.evidence.replay.rounds import replay_rounds, replay_window
from flows.reporting.engine import step
from flows.reporting.progress import progress_reported, titled
from flows.serving.ahead import started
from storage.runs.names import run_name

# No `from __future__ import annotations`: Prefect pickles a served flow by value, where text is no class.


@flow(name="roundweave-replay", persist_result=False)
def replay_flow(config: ReplayConfig) -> Replay:
    """Replay stored rounds, and say whether they have the bits that were committed."""
    with titled(f"replay of {run_name(config.run)}"), started(plan_replay, config) as (plan, executor):
        with progress_reported(f"replay of {plan.stored.name}", len(plan.rounds)) as page:
            replay = replay_rounds(plan, executor, step("replay")(replay_window))
        if page is not None:
            page.leave_table(replay.rows(), "rounds")
    return replay
