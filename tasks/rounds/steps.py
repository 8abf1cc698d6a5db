"""The steps of a round as pure functions: map, fold, reduce, apply and score, without a store or a clock.

A step gives the same bits when it runs again, in another process, or on stored values. An exception in a user's
part is the error of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import torch

from roundweave.storage.errors import RoundFailed, RoundweaveError, failing_as, located, show_whole
from roundweave.storage.rounds.commits import RAISED, Score, ServerRecord, UpdateRecord
from roundweave.storage.values.digests import match_digest
from roundweave.storage.values.state import Match, State, Update
from roundweave.storage.values.tensors import Vectors
from roundweave.tasks.algorithms.reduces.tree import cover, fold, fold_updates
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.data.loading import Partition, Scored
from roundweave.tasks.data.reading import ReadingFailed, as_partition
from roundweave.tasks.networks.objective import Objective, check_unchanged
from roundweave.tasks.networks.spectral import with_unit_vectors
from roundweave.tasks.networks.trying.copies import TRAINING_ONLY
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code, WithCode
from roundweave.tasks.rounds.guard import NOTHING, check_buffers, check_state, checked_update
from roundweave.tasks.rounds.job import Work
from roundweave.tasks.rounds.scoring import Tally, score, tally
from roundweave.tasks.rounds.shares import Nodes, by_shares, joined_update, shares_of, state_share
from roundweave.tasks.rounds.timing import mapping


class MapRaised(RoundweaveError):
    """A map raised an error of its own. The text is the reason to refuse its partition."""


ADVICE = {
    "sparse": "give its Embedding sparse=False",
    "expected more than 1 value per channel": "a batch has one example: give drop_last, or another batch_size",
}
"""Advice about an error of a map, by a phrase in the error."""

LONGEST = 300
"""The most characters of the text of a map's error that are recorded."""


def map_error(work: Work, round: int, partitions: Sequence[int], error: BaseException) -> RoundweaveError:
    """Return an error of a map as `MapRaised`, or as `RoundFailed` for an interrupt or a lack of memory."""
    show_whole(error)  # a refusal records one line only, and the run may go on
    if isinstance(error, KeyboardInterrupt | MemoryError):
        called = work.partitions.called(*partitions)
        return RoundFailed(f"round {round}: the map of {called} failed with {_said(error)}")
    try:
        text = _said(error)
    except Exception:  # noqa: BLE001 - the exception is the user's, and to get its text may fail
        text = type(error).__name__
    hints = (advice for said, advice in ADVICE.items() if said in text.lower())
    return MapRaised("; ".join([RAISED + text[:LONGEST], *hints]))


def own_code(round: int, what: str) -> AbstractContextManager[None]:
    """Return a context in which errors of the user's code become `RoundFailed`; `what` names the step."""
    return failing_as(lambda error: RoundFailed(f"round {round}: {what} failed with {_said(error)}"))


def _said(error: BaseException) -> str:
    """Return the text of an error in one line. An error of reading already says where it was raised."""
    return str(error) if isinstance(error, ReadingFailed) else located(error)


@dataclass(frozen=True)
class Outcome:
    """The state after a round, the records of its updates for the commit, and the matches of the reduce.

    `carry_from` and `server` are as in `Commit`.
    """

    state: State
    records: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    matches: Mapping[int, Match] = field(default_factory=dict)
    server: ServerRecord | None = None


@dataclass(frozen=True)
class BlockResult(WithCode):
    """The result of mapping a block: nodes of the tree for the reduce, and records of its updates for the commit.

    `code` is the user's code that may define the classes of the nodes.
    """

    nodes: Nodes
    records: Mapping[int, UpdateRecord]
    code: tuple[Code, ...] = ()


@dataclass(frozen=True)
class Mapped:
    """The update of one partition as it can be stored, and why it is refused, None if it is sound.

    Its map took so many `seconds` in the process `worker`.
    """

    partition: int
    update: Update
    refused: str | None
    seconds: float = 0.0
    worker: str = ""

    @property
    def raised(self) -> bool:
        """Whether the map raised, so that there is no update."""
        return UpdateRecord("", 0, self.refused).raised


Given = tuple[int, Partition, Mapping[str, Vectors]]
"""The input of a partition's map: its number, its examples, and what it carries, vectors (element,) by slot."""


def map_groups(
    work: Work, state: State, given: Iterable[Given], number: int | None = None
) -> Iterator[list[Mapped]]:
    """Map partitions from a state, as many at once as the mapper does, and yield each group in one list.

    The order of groups may change. `number` is that of `map_together`; the default is the round after the state.
    """
    together = work.mapper.at_once
    if together > 1:  # partitions of equal size have batches of equal lengths
        given = sorted(given, key=lambda each: len(each[1].train))
    remaining = iter(given)
    while group := list(islice(remaining, together)):
        yield map_together(work, state, state.round + 1 if number is None else number, group)


def map_together(work: Work, state: State, number: int, given: Sequence[Given]) -> list[Mapped]:
    """Map some partitions, at most as many as are mapped at once. A map that raises gets an empty update.

    Their randomness comes from `number`: the round, or what the schedule counts. If one of several raises, each is
    mapped alone, to the same bits.
    """
    try:
        return _mapped(work, state, number, given)
    except MapRaised as error:
        if len(given) > 1:
            return [mapped for each in given for mapped in map_together(work, state, number, [each])]
        return [Mapped(given[0][0], NOTHING, str(error))]


def _mapped(work: Work, state: State, number: int, given: Sequence[Given]) -> list[Mapped]:
    round, rule, layout = state.round + 1, work.algorithm.map, work.objective.layout
    partitions = [partition for partition, _, _ in given]
    seeds = [work.map_seed(number, partition) for partition in partitions]
    asked = None if work.rotating else work.asks(round)
    alone = work.partitions.current(partitions[0], asked) if work.mapper.at_once == 1 else None
    with pinned(seeds[0], work.threads), as_partition(alone):
        with failing_as(partial(map_error, work, round, partitions)), mapping(round, partitions[0]):
            inputs = [(each.train, carry, seed) for (_, each, carry), seed in zip(given, seeds, strict=True)]
            updates = work.mapper(rule, work.objective, work.counted(state), inputs)
        declared = rule.carry, rule.extras, rule.observes
        return [
            Mapped(partition, *checked_update(layout, update, state.buffers, *declared))
            for partition, update in zip(partitions, updates, strict=True)
        ]


def fold_block(
    work: Work, round: int, nodes: Iterable[tuple[int, int]], updates: Mapping[int, Update | None]
) -> Nodes:
    """Compute nodes of a round's tree from the updates of their partitions, which are None if refused.

    A schedule folds what has arrived itself: then each update is a node as it is.
    """
    if work.schedule:
        return {(partition, partition + 1): update for partition, update in updates.items()}
    with own_code(round, "the reduce"), pinned(work.map_seed(round, -1), work.threads):
        return {node: fold_updates(work.algorithm.reduce, node, updates) for node in nodes}


def fold_results(work: Work, round: int, blocks: Sequence[BlockResult]) -> BlockResult:
    """Fold the results of neighbouring blocks into one, with the fewest nodes that cover their partitions."""
    records = {partition: record for block in blocks for partition, record in block.records.items()}
    given = {node: value for block in blocks for node, value in block.nodes.items()}
    with own_code(round, "the reduce"), pinned(work.map_seed(round, -1), work.threads):
        low, high = min((first for first, _ in given), default=0), max((end for _, end in given), default=0)
        whole = cover(0, work.partitions.split.partitions, low, high)
        nodes = {node: fold(work.algorithm.reduce, node, lambda first, last: given[first, last]) for node in whole}
    return BlockResult(nodes, records, work.code)


def reduce_apply(
    work: Work, before: Outcome, blocks: Sequence[BlockResult], group: Communicator | None = None
) -> Outcome:
    """Return a round's outcome, from that of the round before and the results of all blocks.

    With a `group` the results have only this rank's share of the elements. The rank reduces the share and sends
    the result to all (reduce-scatter). So it receives about twice the size of the state instead of all other
    ranks' updates. Raises `RoundFailed` if fewer updates than the quorum are sound, or if the new state is not.
    """
    algorithm, round, start = work.algorithm, before.state.round + 1, work.counted(before.state)
    records = dict(sorted((p, record) for block in blocks for p, record in block.records.items()))
    accepted = _accepted(work, records, round)
    nodes = {node: value for block in blocks for node, value in block.nodes.items()}

    def reduced(state: State, nodes: Nodes) -> Update:
        root = fold(algorithm.reduce, (0, work.partitions.split.partitions), lambda *node: nodes[node])
        return replace(algorithm.reduce.finish(state, root), count=len(accepted))

    def step(state: State, nodes: Nodes) -> tuple[State, Update]:
        update = reduced(state, nodes)
        return algorithm.apply(state, update), update

    def applied() -> tuple[State, Update]:
        if group is None:
            return by_shares(step, start, nodes, shares_of(algorithm, start))
        own = reduced(state_share(start, group.rank, group.ranks), nodes)
        update = joined_update(group.all_gather(own))
        return algorithm.apply(start, update), update

    with own_code(round, "the reduce or apply"), pinned(work.map_seed(round, -1), work.threads):
        after, update = applied()
        state = with_unit_vectors(work.objective, work.numbered(after))
        check_buffers(state, before.state, update)
        check_state(work.objective.layout, state, before.state)
    carried = dict.fromkeys(accepted, round) if work.algorithm.map.carry else {}
    matches = dict(zip(accepted, update.matches, strict=False))
    records |= {p: replace(records[p], match=match_digest(match)) for p, match in matches.items()}
    return Outcome(state, records, dict(before.carry_from) | carried, matches)


def _accepted(work: Work, records: Mapping[int, UpdateRecord], round: int) -> list[int]:
    """Return the partitions with sound updates. Raises `RoundFailed` if they are fewer than the quorum."""
    accepted = [partition for partition, record in records.items() if record.refused is None]
    if len(accepted) < work.quorum:
        partition, reason = next((p, record.refused) for p, record in records.items() if record.refused)
        advice = "; try a smaller lr, or check the data" if "non-finite" in str(reason) else ""
        raise RoundFailed(
            f"round {round}: {len(accepted)} of {len(records)} updates are sound, {work.quorum} needed; "
            f"{work.partitions.called(partition)}: {reason}. Rounds to {round - 1} are kept{advice}"
        )
    return accepted


def score_block(
    work: Work, state: State, data: Mapping[int, Scored], own_params: Callable[[int], Vectors] | None = None
) -> list[Tally]:
    """Tally the network of a state on what some partitions score, scorer by scorer, and batch by batch.

    If `own_params` gives the parameters of partitions' own networks, (element,) by dtype, scorers with `own` score
    these.
    """

    def scored(objective: Objective, state: State) -> list[Tally]:
        common, tallies = objective.network(state).eval(), list[Tally]()
        for place, scorer in enumerate(work.scorers):
            for partition, parts in data.items():
                network = common
                if scorer.own and own_params is not None:
                    params = {k: v.to(state.params[k].device) for k, v in own_params(partition).items()}
                    network = objective.network(replace(state, params=params)).eval()
                tallies += tally(objective, network, parts[place], scorer.prefix, partition)
        check_unchanged(common, objective.layout.buffers, state.buffers, TRAINING_ONLY)
        return tallies

    with own_code(state.round, "scoring"), torch.no_grad(), pinned(0, work.threads):
        return work.mapper.scored(work.objective, state, scored)


def judge_round(
    work: Work, round: int, tallies: Sequence[Tally]
) -> tuple[Score | None, Mapping[int, Mapping[str, float]]]:
    """Return the score of a round, and the numbers of each partition, from all batches' tallies in order.

    Without a loss on the held-out examples there is no score.
    """
    with own_code(round, "scoring"):
        of = {each.prefix: [t for t in tallies if t.scorer == each.prefix] for each in work.scorers}
        scored = score(work.objective, of.pop(""), work.threads)
        judged = [s.judge(work.objective, of[s.prefix], work.threads) for s in work.scorers if s.prefix]
        values = {name: value for row, _ in judged for name, value in row.items()}
        rows = {partition: row for _, rows in judged for partition, row in rows.items()}
        return scored and replace(scored, values={**scored.values, **values}), rows
