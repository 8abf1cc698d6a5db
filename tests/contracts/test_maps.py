"""Each map is a pure function: it brings what it declares, repeats its bits, and changes nothing it is given."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from roundweave import Algorithm, Examples, Partitions, Split, State, Update, reduce_all
from roundweave.storage.values.digests import update_digest
from roundweave.tasks.algorithms.table import MAPS, build_algorithm
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.rounds.guard import checked_update

OBJECTIVE = Objective(ModelSpec("cnn", (1, 8, 8), 10, "float32", 0, '{"channels": 2}'), "cross_entropy")
PARTITIONS = Partitions(Digits(), Split(2))
EXAMPLES = PARTITIONS.load(0, 0).first(40)
OTHERS = {
    "carried": ("fed_avg", {"optimizer": "AdamW", "optimizer_state": "carried"}, {}),
    "observing": ("fed_avg", {}, {"reduce": "regmean"}),
    "of a replica": ("downpour", {"fetch_every": 2}, {}),
}
"""Maps without a name of their own, or that carry more by an option: an algorithm, options and parts."""


@pytest.fixture(params=[*MAPS, *OTHERS])
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    """One row for each map, in an algorithm that keeps what it needs."""
    named, options, parts = OTHERS.get(request.param, ("fed_avg", {}, {"map": request.param}))
    return build_algorithm(named, options, parts).bound(OBJECTIVE, PARTITIONS)


def mapped(algorithm: Algorithm, state: State, examples: Examples, carry, seed: int = 7) -> Update:
    with pinned(seed, threads=1):
        return algorithm.map(OBJECTIVE, state, examples, carry, seed)


def begun(algorithm: Algorithm) -> tuple[State, Update]:
    """The state after a first round, and the update that led to it."""
    start = OBJECTIVE.initial()
    start = replace(start, memory=algorithm.apply.init(start.params))
    update = mapped(algorithm, start, EXAMPLES, {})
    return algorithm.apply(start, reduce_all(algorithm.reduce, start, [update])), update


class TestMap:
    def test_it_is_a_value_that_prints_itself(self, algorithm: Algorithm) -> None:
        assert pickle.loads(pickle.dumps(algorithm.map)) == algorithm.map
        assert repr(algorithm.map).startswith(f"{type(algorithm.map).__name__}(")

    def test_its_updates_are_sound_and_bring_what_it_declares(self, algorithm: Algorithm) -> None:
        """In a first round, and in one that goes on from what the first carried."""
        state, first = begun(algorithm)
        for update in (first, mapped(algorithm, state, EXAMPLES, first.carry)):
            declared = tuple(algorithm.map.carry), tuple(algorithm.map.extras)
            assert (tuple(update.carry), tuple(update.extras)) == declared
            checked = checked_update(OBJECTIVE.layout, update, state.buffers, *declared, algorithm.map.observes)
            assert checked == (update, None)

    def test_it_repeats_itself_and_changes_nothing_that_it_is_given(self, algorithm: Algorithm) -> None:
        state, first = begun(algorithm)
        before = pickle.dumps((state, EXAMPLES, first.carry))
        one, other = (mapped(algorithm, state, EXAMPLES, first.carry) for _ in range(2))
        assert pickle.dumps((state, EXAMPLES, first.carry)) == before
        assert update_digest(one) == update_digest(other)
        assert one.metrics == other.metrics
