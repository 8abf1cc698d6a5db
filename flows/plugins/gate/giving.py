"""A person gives an alias to a run, pins it, or takes it back; what the run exports goes with the alias."""

from __future__ import annotations

from roundweave.flows.config.plugins import active_plugins, failing_by_name
from roundweave.flows.config.recorded import recorded_config
from roundweave.flows.plugins.gate.judging import give
from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.names import give_alias, holder_of, stored_round


def give_by_hand(
    root: Where, alias: str, named: str | None, why: str, pinned: bool = False, anyway: bool = False
) -> None:
    """Give an alias to a run that is named as ``RUN``, ``RUN@12`` or by an alias; for None nobody has it any more.

    Raises `UsageError` for a run that its gate rejected, unless it is given `anyway`.
    """
    if named is None:
        former = _open(root, alias) if holder_of(root, alias) else None
        give_alias(root, alias, None, why, pinned=pinned)
        if former:
            _tell(former, alias, holds=False)
        return
    run = _open(root, named)
    if (judged := run.judgement) and not judged.accepted and not anyway:
        reasons = "; ".join(judged.reasons)
        raise UsageError(f"{run.name} is rejected: {reasons}; --anyway gives it the alias all the same")
    give(root, alias, run, run.round("last"), why, pinned=pinned)
    _tell(open_run(alias, root), alias, holds=True)


def _open(root: Where, named: str) -> Run:
    """The run up to the round that is named, or to the one that the run hands out."""
    stored = stored_round(named)
    run = open_run(stored[0] if stored else named, root)
    round = run.round(stored[1]) if stored else run.result
    return Run(run.address, root, round.number)


def _tell(run: Run, alias: str, holds: bool) -> None:
    """Tell the plugins that took part in the run's training."""
    for plugin in active_plugins(recorded_config(run, run.root, False, {})):
        with failing_by_name(plugin):
            plugin.promoted(run, alias, holds)
