"""The flow that reduces stored rounds again."""

from prefect import flow

from flows.evidence.recombine.config import RecombineConfig
from flows.evidence.recombine.recombining import plan_recombine, recombined
from flows.reporting.progress import flow_page, titled
from flows.serving.ahead import started
from storage.runs.names import run_name
from tasks.evidence.recombining import Recombination

# No `from __future__ import annotations`: Prefect pickles a served flow by value, where text is no class.


@flow(name="roundweave-recombine", persist_result=False)
def recombine_flow(config: RecombineConfig) -> Recombination:
    """Reduce stored rounds again without training, and leave their scores as a table on Prefect's page."""
    title = f"{run_name(config.run)}-recombined"
    with titled(title), started(plan_recombine, config) as (plan, executor):
        result = recombined(plan, executor)
    with flow_page(f"{result.run}-recombined") as page:
        if page is not None:
            page.leave_table([round.row() for round in result.rounds], "scores")
    return result
