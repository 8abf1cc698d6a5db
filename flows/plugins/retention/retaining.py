"""After a night's run the older ones of its schedule are removed, as `retain` says."""

from __future__ import annotations

from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import cut, one_line
from roundweave.storage.parsing import span_seconds
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import run_address
from roundweave.storage.runs.removing import YOUNGER, Eligible, remove


def remove_older(run: Run, retain: str, schedule: str) -> None:
    """Remove the runs of a run's schedule, whose names it matches, that began longer ago than `retain`.

    Notices say what went and what should have gone. Whatever fails, the run itself is not affected.
    """
    try:
        runs = looked_through(run.root, names=schedule).items()
        older = {run_address(run.root, name): each for name, each in runs if name != run.name}
        done = list(remove(Eligible(span_seconds(retain)).removals(run.root, older)))
        for each in done:
            if each.stays not in ("", YOUNGER):
                notice(f"{each.name} stays, though retain is {retain}: {each.stays}")
        gone = [each for each in done if not each.stays]
        if gone:
            freed = f"{sum(each.bytes for each in gone) / 1e6:.3g} MB"
            notice(f"retain {retain} removed {', '.join(cut([each.name for each in gone]))}, {freed}")
    except Exception as error:  # noqa: BLE001 - nothing of it may fail the training
        notice(f"not all older runs were removed ({one_line(error)}); the run itself is not affected")
