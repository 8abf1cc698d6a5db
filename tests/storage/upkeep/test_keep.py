"""What is kept, as it is written and as it decides: by item, and for any rounds and carries."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.rounds.commits import Commit, InFlight, ServerRecord
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.upkeep.keep import All, Keep, Updates

NOTHING = Pruned()
KEEPS = st.one_of(
    st.sampled_from(["all", "states"]),
    st.builds("{}:{}".format, st.sampled_from(["updates", "every", "last"]), st.integers(1, 6)),
).map(Keep.of)


def newest(round: int, carry_from: dict[int, int] | None = None) -> Commit:
    return Commit(round, "writer", 1, "", {}, carry_from=carry_from or {})


def test_the_updates_stay_that_carry_what_going_on_needs() -> None:
    commit = newest(7, {0: 7, 1: 2, 2: 5})
    assert Keep.of("last:1").prunes(commit, NOTHING).carried == {(2, 1), (5, 2)}
    assert Keep.of("states").prunes(commit, NOTHING).carried == {(7, 0), (2, 1), (5, 2)}
    assert Keep.of("every:5").prunes(commit, NOTHING).carried == {(7, 0), (2, 1)}


def test_what_is_carried_no_more_goes_unless_all_or_its_round_stays() -> None:
    former = Keep.of("last:1").prunes(newest(7, {1: 2, 2: 5}), NOTHING)
    later = newest(8, {1: 8, 2: 5})
    assert Keep.of("last:1").prunes(later, former).carried == {(5, 2)}
    assert Keep.of("every:2").prunes(later, former).carried == {(2, 1), (5, 2)}
    assert Keep.of("all").prunes(later, former) == former


@given(st.lists(st.tuples(st.integers(1, 9), KEEPS), max_size=6), st.data())
@settings(max_examples=40)
def test_what_went_never_comes_back_and_what_is_needed_never_goes(steps, data) -> None:
    pruned, round, carry_from = NOTHING, 0, {}
    for more, keep in steps:
        for _ in range(more):
            round += 1
            carry_from |= dict.fromkeys(data.draw(st.sets(st.integers(0, 2))), round)
        before, pruned = pruned, keep.prunes(newest(round, carry_from), pruned)
        assert before.states <= pruned.states and before.updates <= pruned.updates
        assert pruned.has_state(round) and pruned.has_state(0)
        assert all(pruned.has_update(source, partition) for partition, source in carry_from.items())
        for source in range(1, round + 1):
            for partition in range(3):
                assert before.has_update(source, partition) or not pruned.has_update(source, partition)


@given(st.lists(st.tuples(st.lists(st.booleans(), min_size=1, max_size=9), KEEPS, st.integers(0, 9)), max_size=6))
def test_a_state_that_is_needed_is_there_or_can_be_made_again(steps) -> None:
    """Rounds are made, their states stored or not, and less is kept of them, where an older one may be needed."""
    stored, pruned = [True], NOTHING

    def made(pruned: Pruned) -> set[int]:
        """The rounds whose states are there or can be made again, one after the other."""
        found = {0}
        for round in range(1, len(stored)):
            there = stored[round] and pruned.has_state(round)
            if there or (round - 1 in found and pruned.has_update(round)):
                found.add(round)
        return found

    for more, keep, back in steps:
        stored += more
        last = len(stored) - 1
        before, needed = made(pruned), max(last - back, 0)
        while needed not in before:
            needed += 1
        base = next(r for r in range(needed, -1, -1) if stored[r] and pruned.has_state(r))
        former, pruned = pruned, keep.prunes(newest(last), pruned, base, stored.__getitem__)
        wanted = before if isinstance(keep, All | Updates) else {r for r in before if r >= needed}
        assert wanted <= made(pruned)
        assert last in made(pruned)
        if isinstance(keep, Updates):
            assert pruned.updates == former.updates
            going = {r for r in range(1, last) if r % keep.k and r != base} & before
            kept = {r for r in going if pruned.has_state(r)}
            assert all(not former.has_update(r) or r - 1 not in before for r in kept)


def test_the_state_stays_from_which_a_run_goes_on() -> None:
    assert Keep.of("updates:4").prunes(newest(9), NOTHING, base=5).states == {1, 2, 3, 6, 7}
    pruned = Pruned(frozenset({1, 2, 3, 5, 6}), frozenset({1, 2, 3, 5, 6, 7}))
    assert Keep.of("every:4").prunes(newest(9), NOTHING, base=7) == pruned


def test_single_updates_stay_that_are_needed_to_map_rounds_again() -> None:
    """Partition 0 carries from round 3 into the kept state of round 4, and from round 9 into the newest."""
    former = Keep.of("recompute:4").prunes(newest(5, {0: 3}), NOTHING, single=[(3, 0)])
    assert former == Pruned(frozenset({1, 2, 3}), frozenset({1, 2, 3, 4, 5}), frozenset({(3, 0)}))
    later = Keep.of("recompute:4").prunes(newest(9, {0: 9}), former, single=[(3, 0), (3, 1)])
    assert later.states == {1, 2, 3, 5, 6, 7}
    assert later.carried == {(3, 0), (9, 0)}


def test_states_since_one_that_a_partition_has_in_hand_are_there_or_made_again() -> None:
    commit = replace(newest(8), server=ServerRecord({0: InFlight(3, 8), 1: InFlight(2, 5)}))
    assert (commit.begins, newest(8).begins) == ({5, 8}, {8})
    gone = Keep.of("last:1").prunes(commit, NOTHING, min(commit.begins))
    assert gone == Pruned(frozenset({1, 2, 3, 4, 6, 7}), frozenset({1, 2, 3, 4, 5}))
    assert Keep.of("states").prunes(commit, NOTHING, min(commit.begins)).updates == {1, 2, 3, 4, 5}
