"""After a night's run the older ones of its schedule are removed, as `retain` says."""

from __future__ import annotations

from roundweave.flows.config.resolving import Resolved
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import cut, one_line
from roundweave.storage.parsing import span_seconds
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import run_address
from roundweave.storage.runs.removing import YOUNGER, Eligible, remove


def remove_older(resolved: Resolved) -> None:
    """Remove the runs of a run's schedule that began longer ago than `retain`, if that is given.

    Notices say what went and what should have gone. Whatever fails, the run itself is not affected.
    """
    config = resolved.config
    if config.retain is None:
        return
    try:
        runs = looked_through(config.root, names=config.schedule or "").items()
        older = {run_address(config.root, name): run for name, run in runs if name != resolved.name}
        done = list(remove(Eligible(span_seconds(config.retain)).removals(config.root, older)))
        for each in done:
            if each.stays not in ("", YOUNGER):
                notice(f"{each.name} stays, though retain is {config.retain}: {each.stays}")
        gone = [each for each in done if not each.stays]
        if gone:
            freed = f"{sum(each.bytes for each in gone) / 1e6:.3g} MB"
            notice(f"retain {config.retain} removed {', '.join(cut([each.name for each in gone]))}, {freed}")
    except Exception as error:  # noqa: BLE001 - nothing of it may fail the training
        notice(f"not all older runs were removed ({one_line(error)}); the run itself is not affected")
