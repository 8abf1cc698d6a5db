"""A person gives an alias to a run, pins it, or takes it back; what the run exports goes with the alias."""

from __future__ import annotations

from roundweave.flows.config.recorded import is_own_run
from roundweave.flows.plugins.gate.judging import give, tell
from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.names import give_alias, holder_of, holding_of, is_run, run_address, stored_round


def give_by_hand(
    root: Where, alias: str, named: str | None, why: str, pinned: bool = False, anyway: bool = False
) -> None:
    """Give an alias to a run that is named as ``RUN``, ``RUN@12`` or by an alias; for None nobody has it any more.

    Raises `UsageError` for a run under another root, and for a rejected one unless it is given `anyway`.
    """
    former = holding_of(root, alias)
    if named is None:
        give_alias(root, alias, None, why, pinned=pinned)
    else:
        run, by_name = _open(root, named)
        judged = Run(run.address, root).judgement
        if not is_own_run(run, root):
            raise UsageError(
                f"{run.name} lies in {run.address}, and {alias} under {root}; copy the run there first"
            )
        if by_name and judged and not judged.accepted and not anyway:
            reasons = "; ".join(judged.reasons)
            raise UsageError(f"{run.name} is rejected: {reasons}; --anyway gives it the alias all the same")
        round = run.round("last")
        round.tensor(next(iter(run.tensors)))  # raises `RoundPruned` where there is no network to hand out
        give(root, alias, run, round, why, pinned=pinned)
        tell(run, alias)
    if former and former.run and former.run != holder_of(root, alias) and is_run(run_address(root, former.run)):
        tell(Run(run_address(root, former.run), root, former.round), alias)


def _open(root: Where, named: str) -> tuple[Run, bool]:
    """The run up to the round that is named, or to the one that it hands out, and whether it is no alias."""
    stored = stored_round(named)
    run = open_run(stored[0] if stored else named, root)
    round = run.round(stored[1]) if stored else run.result if run.until is None else run.round("last")
    return Run(run.address, root, round.number), run.until is None
