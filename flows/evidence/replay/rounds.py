"""The rounds of a replay, window by window, on any executor."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from flows.config.resolving import work_of
from flows.evidence.replay.key import key_differences
from flows.evidence.replay.preparing import ReplayPlan, examples_wanted
from flows.evidence.replay.result import Replay
from flows.reporting.listening import tell_progress
from storage.errors import RoundMissing, listed
from storage.places.addresses import full_address
from storage.rounds.store import RoundStore
from tasks.evidence.verdicts import Difference, Verdict
from tasks.executors.base import Executor
from tasks.numerics import fingerprint
from tasks.rounds.job import Attempt, Job, Work
from tasks.rounds.plan import RoundPlan, replay_windows


def replay_rounds(plan: ReplayPlan, executor: Executor) -> Replay:
    """Replay the rounds of a plan; raises `RoundMissing` where a round that was asked for is no longer there."""
    with examples_wanted():
        work, description = work_of(plan.resolved, executor)
    key = key_differences(plan.stored, plan.code, description, executor.each(fingerprint))
    # No lease and no writing: the token only tells this reader's tasks from those of others.
    attempt = Attempt(full_address(plan.stored.address), secrets.token_hex(4), epoch=0, rounds=plan.stored.rounds)
    job = Job(work, attempt, RoundPlan(plan.resolved.config.partitions))
    verdicts = _other_network(attempt.open(), work, plan.rounds)
    for rounds in replay_windows(plan.rounds if not verdicts else (), job.split):
        for verdict in executor.replay(job, rounds):
            verdicts.append(verdict)
            tell_progress(len(verdicts), len(plan.rounds), str(verdict))
    return _checked(plan, Replay(plan.stored.name, key, tuple(verdicts)))


def _other_network(store: RoundStore, work: Work, rounds: Sequence[int]) -> list[Verdict]:
    """The verdicts where the network is another one, into which nothing that is stored fits."""
    now, then = work.objective.layout, store.schema.layout
    if now == then:
        return []
    pairs = [(getattr(now, kind), getattr(then, kind)) for kind in ("params", "buffers", "frozen", "aliases")]
    new = [str(part) for mine, theirs in pairs for part in mine if part not in theirs]
    old = [str(part) for mine, theirs in pairs for part in theirs if part not in mine]
    said = f"the network has {', '.join(new) or 'another order'} instead of {', '.join(old) or 'that'}"
    difference = Difference("layout", said=said[:300])
    return [Verdict(round, difference) for round in rounds]


def _checked(plan: ReplayPlan, replay: Replay) -> Replay:
    """The replay; rounds that cannot be replayed are an error where they were named or there are no others."""
    if replay.lacking and ((plan.config.rounds != "all" and plan.config.sample is None) or not replay.replayed):
        numbers = listed(verdict.round for verdict in replay.lacking)
        raise RoundMissing(f"round {numbers} of {replay.run} cannot be replayed: {replay.lacking[0].lacking}")
    return replay
