"""The steps of a round as pure functions: values in, values out, with no store and no clock.

A step that is run again, elsewhere, or on values that were stored gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice

import torch

from storage.errors import RoundFailed, RoundweaveError, failing_as, listed, located
from storage.rounds.commits import RAISED, Score, ServerRecord, UpdateRecord
from storage.values.digests import match_digest
from storage.values.layout import Layout
from storage.values.state import Match, State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Node
from tasks.data.partitions import Partition
from tasks.networks.objective import Objective
from tasks.numerics import pinned
from tasks.reduces.tree import cover, fold, fold_updates
from tasks.rounds.guard import NOTHING, checked, misshapen, non_finite
from tasks.rounds.job import Work
from tasks.rounds.scoring import Tally, score, tally
from tasks.rounds.timing import mapping
from tasks.user_code import Code, WithCode

Nodes = Mapping[tuple[int, int], Node | None]
"""Nodes of the tree over partitions by (first, last); None where no partition of it has a sound update."""


@dataclass(frozen=True)
class Outcome:
    """The state after a round, what its commit says of the updates, and how the reduce matched their units.

    `carry_from` and `server` are as in `Commit`.
    """

    state: State
    records: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    matches: Mapping[int, Match] = field(default_factory=dict)
    server: ServerRecord | None = None


@dataclass(frozen=True)
class BlockResult(WithCode):
    """What a block's maps give: nodes of the tree for the reduce, records of its updates for the commit.

    `code` is the user's code whose classes the nodes may be of.
    """

    nodes: Nodes
    records: Mapping[int, UpdateRecord]
    code: tuple[Code, ...] = ()


@dataclass(frozen=True)
class Mapped:
    """One partition's update as it can be kept, and why it is refused (None where it is sound)."""

    partition: int
    update: Update
    refused: str | None

    @property
    def raised(self) -> bool:
        """Whether there is no update, as the map raised."""
        return UpdateRecord("", 0, self.refused).raised


class MapRaised(RoundweaveError):
    """A map raised something of its own; its text is the reason to refuse the partition."""


LONGEST = 300
"""Characters that are kept of what a map raised."""


Given = tuple[int, Partition, Mapping[str, Vectors]]
"""What a map is given of a partition: its number, its examples, and what it carries."""


def map_block(
    work: Work,
    state: State,
    partitions: Iterable[int],
    data: Iterable[Partition],
    carries: Iterable[Mapping[str, Vectors]],
) -> Iterator[Mapped]:
    """Map partitions, each from the state, its examples and what it carries; as many at once as the map stacks."""
    return chain.from_iterable(map_groups(work, state, zip(partitions, data, carries, strict=True)))


def map_groups(work: Work, state: State, given: Iterable[Given]) -> Iterator[list[Mapped]]:
    """The same, those that are mapped at once together."""
    together = work.compute.stacked
    if together > 1:  # those with as many examples have batches of the same lengths
        given = sorted(given, key=lambda each: len(each[1].train))
    remaining = iter(given)
    while group := list(islice(remaining, together)):
        yield map_together(work, state, state.round + 1, group)


def map_partition(
    work: Work, state: State, turn: int, partition: int, examples: Partition, carry: Mapping[str, Vectors]
) -> Mapped:
    """Map one partition at its own turn, from which its randomness is drawn; where all wait, it is the round."""
    return map_together(work, state, turn, [(partition, examples, carry)])[0]


def map_together(work: Work, state: State, turn: int, given: Sequence[Given]) -> list[Mapped]:
    """Map some partitions at the same turn, as many as the map stacks or fewer; who raises gives no update.

    Of several, each is then mapped alone: that changes no bits.
    """
    try:
        return _mapped(work, state, turn, given)
    except MapRaised as error:
        if len(given) > 1:
            return [mapped for each in given for mapped in map_together(work, state, turn, [each])]
        return [Mapped(given[0][0], NOTHING, str(error))]


def _mapped(work: Work, state: State, turn: int, given: Sequence[Given]) -> list[Mapped]:
    round, rule, layout = state.round + 1, work.algorithm.map, work.objective.layout
    partitions, data, carries = zip(*given, strict=True)
    seeds = [work.map_seed(turn, partition) for partition in partitions]
    with pinned(seeds[0], work.threads):
        with failing_as(partial(_told, round, partitions)), mapping(round, partitions[0]):
            examples = [each.train for each in data]
            updates = work.mapper(work.objective, work.counted(state), examples, carries, seeds)
        return [
            Mapped(partition, *checked(layout, update, state.buffers, rule.carry, rule.extras))
            for partition, update in zip(partitions, updates, strict=True)
        ]


def _told(round: int, partitions: Sequence[int], error: BaseException) -> RoundweaveError:
    """What a map raised as a reason to refuse it; `RoundFailed` for what is no fault of the map's."""
    if isinstance(error, KeyboardInterrupt | MemoryError):
        return RoundFailed(
            f"round {round}: the map of partition {listed(partitions)} failed with {located(error)}"
        )
    try:
        said = located(error)
    except Exception:  # noqa: BLE001 - the user's, too: an exception that cannot tell its text
        said = type(error).__name__
    return MapRaised(RAISED + said[:LONGEST])


def own_code(round: int, what: str) -> AbstractContextManager[None]:
    """Within, what the user's code raises is told as `RoundFailed`."""
    return failing_as(lambda error: RoundFailed(f"round {round}: {what} failed with {located(error)}"))


def fold_block(
    work: Work, round: int, nodes: Iterable[tuple[int, int]], updates: Mapping[int, Update | None]
) -> Nodes:
    """Nodes of a round's tree from the updates of their partitions, None for one that is refused."""
    with own_code(round, "the reduce"), pinned(work.map_seed(round, -1), work.threads):
        return {node: fold_updates(work.algorithm.reduce, node, updates) for node in nodes}


def fold_results(work: Work, round: int, partitions: int, blocks: Sequence[BlockResult]) -> BlockResult:
    """What neighbouring blocks give as one: the fewest nodes that make up their partitions, of so many in all."""
    records = {partition: record for block in blocks for partition, record in block.records.items()}
    given = {node: value for block in blocks for node, value in block.nodes.items()}
    with own_code(round, "the reduce"), pinned(work.map_seed(round, -1), work.threads):
        nodes = {
            node: fold(work.algorithm.reduce, node, lambda first, last: given[first, last])
            for node in cover(0, partitions, min(records), max(records) + 1)
        }
    return BlockResult(nodes, records, work.code)


def reduce_apply(work: Work, before: Outcome, blocks: Sequence[BlockResult]) -> Outcome:
    """A round's outcome from that of the one before; `RoundFailed` below the quorum or for an unsound state."""
    return apply_reduced(work, before, blocks, lambda: _root_update(work, before.state, blocks))


def reduce_blocks(work: Work, before: State, blocks: Sequence[BlockResult]) -> Update:
    """A round's update, of all elements or of a share of them; `RoundFailed` below the quorum."""
    round = before.round + 1
    _accepted(work, _records(blocks), round)
    with own_code(round, "the reduce"), pinned(work.map_seed(round, -1), work.threads):
        return _root_update(work, before, blocks)


def _root_update(work: Work, before: State, blocks: Sequence[BlockResult]) -> Update:
    reduce, root = work.algorithm.reduce, (0, sum(len(block.records) for block in blocks))
    nodes = {node: value for block in blocks for node, value in block.nodes.items()}
    return reduce.finish(work.counted(before), fold(reduce, root, lambda first, last: nodes[first, last]))


def _records(blocks: Sequence[BlockResult]) -> dict[int, UpdateRecord]:
    return dict(sorted((p, record) for block in blocks for p, record in block.records.items()))


def apply_reduced(
    work: Work, before: Outcome, blocks: Sequence[BlockResult], update: Callable[[], Update]
) -> Outcome:
    """A round's outcome from its update and the records of its blocks; raises as `reduce_apply`."""
    round, rules, records = before.state.round + 1, work.algorithm, _records(blocks)
    accepted = _accepted(work, records, round)
    with own_code(round, "the reduce or apply"), pinned(work.map_seed(round, -1), work.threads):
        reduced = update()
        state = work.numbered(rules.apply(work.counted(before.state), reduced))
        check_state(work.objective.layout, state, before.state)
    carried = dict.fromkeys(accepted, round) if rules.map.carry else {}
    matches = dict(zip(accepted, reduced.matches, strict=False))
    records |= {p: replace(records[p], match=match_digest(match)) for p, match in matches.items()}
    return Outcome(state, records, dict(before.carry_from) | carried, matches)


def _accepted(work: Work, records: Mapping[int, UpdateRecord], round: int) -> list[int]:
    """The partitions with sound updates; raises `RoundFailed` when they are fewer than the quorum."""
    accepted = [partition for partition, record in records.items() if record.refused is None]
    if len(accepted) < work.quorum:
        partition, reason = next((p, record.refused) for p, record in records.items() if record.refused)
        advice = "; try a smaller lr, or check the data" if "non-finite" in str(reason) else ""
        raise RoundFailed(
            f"round {round}: {len(accepted)} of {len(records)} updates are sound, {work.quorum} needed; "
            f"partition {partition}: {reason}. Rounds to {round - 1} are kept{advice}"
        )
    return accepted


def check_state(layout: Layout, state: State, before: State) -> None:
    """Raise `RoundFailed` for a new state that the round after could not begin from.

    That is one of another round or with other memory slots than the apply's `init` has, one whose vectors are
    misshapen, or one with new numbers that are not finite.
    """
    if state.round != before.round + 1:
        raise RoundFailed(
            f"round {before.round + 1}: the apply gave the state of round {state.round}; have it return "
            "replace(state, ..., round=state.round + 1)"
        )
    if state.memory.keys() != before.memory.keys():
        raise RoundFailed(
            f"round {state.round}: the apply's memory has slots {sorted(state.memory)}, its init "
            f"{sorted(before.memory)}; give both the same"
        )
    params, buffers = (layout.params, state.params), (layout.buffers, state.buffers)
    reason = misshapen(*params) or non_finite(*params)
    reason = reason or misshapen(*buffers) or non_finite(*buffers, before=before.buffers)
    for slot, vectors in state.memory.items():
        if not reason and (why := misshapen(layout.params, vectors) or non_finite(layout.params, vectors)):
            reason = f"memory {slot}: {why}"
    if reason:
        raise RoundFailed(
            f"round {before.round + 1}: the new state is unsound, {reason}. Rounds to {before.round} are kept; "
            "try a smaller lr or outer lr"
        )


def score_block(work: Work, state: State, data: Sequence[Partition]) -> list[Tally]:
    """Score the network of a state on the held-out examples of some partitions."""

    def scored(objective: Objective, state: State) -> list[Tally]:
        network = objective.network(state).eval()
        return [each for part in data for each in tally(objective, network, part.held_out)]

    with own_code(state.round, "scoring"), torch.no_grad(), pinned(0, work.threads):
        return work.mapper.scored(work.objective, state, scored)


def judge_round(work: Work, round: int, tallies: Sequence[Tally]) -> Score | None:
    """The score of a round from what all batches of held-out examples gave, in their order."""
    with own_code(round, "scoring"):
        return score(work.objective, tallies, work.threads)
