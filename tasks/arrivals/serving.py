"""The steps of an asynchronous round as pure functions: a partition's turn, and what the server does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storage.errors import RoundFailed
from storage.rounds.commits import Arrival, Hand, ServerRecord, UpdateRecord
from storage.values.digests import match_digest
from storage.values.state import Match, State, Update
from storage.values.tensors import Vectors
from tasks.arrivals.ledger import next_hands, standing
from tasks.data.partitions import Partition
from tasks.numerics import accumulator, limited, pinned
from tasks.reduces.tree import fold_updates
from tasks.rounds.guard import NOTHING
from tasks.rounds.job import Work
from tasks.rounds.landing import Intake
from tasks.rounds.steps import Mapped, Outcome, check_state, map_partition, own_code
from tasks.user_code import Code, WithCode
from tasks.when import Asynchronous


@dataclass(frozen=True)
class Pushed(WithCode):
    """What a partition pushes: its update, what is to be recorded of it, and what it goes on with.

    That is what the update carries; where it is unsound, what it was mapped with, here as `kept`. `began` is the
    turn and the row that it was mapped from, where that is known.
    """

    partition: int
    update: Update
    record: UpdateRecord
    kept: Update = NOTHING
    began: tuple[int, int] | None = None
    code: tuple[Code, ...] = ()

    @property
    def carry(self) -> Mapping[str, Vectors]:
        """What the partition has for its next turn, vectors (element,) by slot."""
        return self.update.carry if self.record.refused is None else self.kept.carry


def recorded_push(work: Work, partition: int, record: UpdateRecord, update: Update) -> Pushed:
    """What a partition has pushed, as it was before the server saw how stale it is."""
    stale = record.arrival and rules(work).refusal(record.arrival.staleness)
    record = replace(record, refused=None if stale == record.refused else record.refused, arrival=None)
    return Pushed(partition, update, record, code=work.code)


def rules(work: Work) -> Asynchronous:
    """How the updates of asynchronous work are taken."""
    when = work.algorithm.when
    assert isinstance(when, Asynchronous)
    return when


def map_turn(
    work: Work, fetched: State, hand: Hand, partition: int, examples: Partition, carry: Mapping[str, Vectors]
) -> Mapped:
    """A partition's turn: what it has in hand, mapped from the state that it fetched and what it carries."""
    return map_partition(work, fetched, hand.turn, partition, examples, carried(work, hand, carry))


def carried(work: Work, hand: Hand, carry: Mapping[str, Vectors]) -> Mapping[str, Vectors]:
    """What a partition has carried to its turn, (element,) by slot; nothing where a fetch replaces it."""
    return {} if _begins_anew(work, hand) else carry


def _begins_anew(work: Work, hand: Hand) -> bool:
    return work.algorithm.map.forgets and rules(work).fetches(hand.turn)


def serve(work: Work, before: Outcome, intake: Intake, pushed: Sequence[Pushed]) -> Outcome:
    """The outcome of a server round from that of the one before and the updates that land, in the same order.

    Raises `RoundFailed` for an unsound state, and once no partition has a sound update left.
    """
    when, round = rules(work), before.state.round + 1
    server = standing(before.server, work.partitions.split.partitions)
    records = {each.partition: _judged(when, server, each) for each in pushed}
    taken = {
        each.partition: _scaled(each.update, when.factor(_staleness(records[each.partition])))
        for each in pushed
        if records[each.partition].refused is None
    }
    state, matches = _applied(work, before.state, taken)
    with own_code(round, "the apply"), limited(work.threads):
        check_state(work.objective.layout, state, before.state)
    records |= {p: replace(records[p], match=match_digest(match)) for p, match in matches.items()}
    unsound = {each.partition: each.record.refused for each in pushed if each.record.refused is not None}
    after = _after(when, server, intake, round, unsound, took=bool(taken))
    return Outcome(state, records, _carry_from(work, before, server, pushed), matches, after)


def _judged(when: Asynchronous, server: ServerRecord, pushed: Pushed) -> UpdateRecord:
    """The record of an update that lands: how stale it is, and whether it is therefore refused."""
    hand, record = server.hands[pushed.partition], pushed.record
    # What is recorded must be what was computed, or the round could not be replayed.
    if pushed.began not in (None, (hand.turn, hand.row)):
        turn = f"turn {hand.turn} from row {hand.row}"
        raise RoundFailed(
            f"partition {pushed.partition} pushed {pushed.began}, and has {turn} in hand; start again"
        )
    staleness = server.steps - hand.steps
    return replace(
        record,
        refused=record.refused or when.refusal(staleness),
        metrics={**record.metrics, "staleness": float(staleness)},
        arrival=Arrival(hand.turn, hand.row, staleness),
    )


def _staleness(record: UpdateRecord) -> int:
    assert record.arrival is not None
    return record.arrival.staleness


def _scaled(update: Update, factor: float) -> Update:
    """An update with its direction, vectors (element,), times a factor; computed in the accumulator type."""
    if factor == 1.0:
        return update
    direction = {k: (v.to(accumulator(k)) * factor).to(v.dtype) for k, v in update.direction.items()}
    return replace(update, direction=direction)


def _applied(work: Work, before: State, taken: Mapping[int, Update]) -> tuple[State, dict[int, Match]]:
    """The state of the round after the one before, with the updates that are taken; as it was with none."""
    rules, round = work.algorithm, before.round + 1
    if not taken:
        return replace(before, round=round), {}
    partitions = work.partitions.split.partitions
    with own_code(round, "the reduce or apply"), pinned(work.map_seed(round, -1), work.threads):
        start = work.counted(before)
        updates = {partition: taken.get(partition) for partition in range(partitions)}
        reduced = rules.reduce.finish(start, fold_updates(rules.reduce, (0, partitions), updates))
        state = work.numbered(rules.apply(start, reduced))
        return replace(state, round=round), dict(zip(sorted(taken), reduced.matches, strict=False))


def _carry_from(work: Work, before: Outcome, server: ServerRecord, pushed: Sequence[Pushed]) -> Mapping[int, int]:
    """From which round each partition's carry comes; after an unsound update of who fetched, from none."""
    sources = dict(before.carry_from)
    for each in pushed if work.algorithm.map.carry else ():
        if each.record.refused is None:
            sources[each.partition] = before.state.round + 1
        elif _begins_anew(work, server.hands[each.partition]):
            sources.pop(each.partition, None)
    return sources


def _after(
    when: Asynchronous, server: ServerRecord, intake: Intake, round: int, refused: Mapping[int, str], took: bool
) -> ServerRecord:
    """Where the server stands after a round; raises `RoundFailed` where no partition has a sound update left."""
    unsound = (set(server.unsound) - set(intake.partitions)) | refused.keys()
    if len(unsound) == len(server.hands):
        partition, reason = next(iter(refused.items()))
        raise RoundFailed(
            f"round {round}: no partition has a sound update left; partition {partition}: {reason}. "
            f"Rounds to {round - 1} are kept and name the others; try a smaller lr, or check the data"
        )
    steps = server.steps + took
    return ServerRecord(next_hands(when, server, intake, round, steps), steps, tuple(sorted(unsound)))
