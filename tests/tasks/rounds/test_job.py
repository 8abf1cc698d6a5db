"""The plan: blocks of neighbours, seeds, and how many rounds are submitted at once."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from roundweave.tasks.rounds.job import LARGEST_WINDOW, RoundPlan, Work, replay_windows, window_size

SIZES = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(SIZES, st.integers(1, 9), st.data())
def test_blocks_share_a_cohort_by_whole_shards_evenly(sizes: tuple[int, int], shard: int, data) -> None:
    cohort = tuple(sorted(data.draw(st.sets(st.integers(0, sizes[0] - 1), min_size=1))))
    plan = RoundPlan(sizes[0], min(sizes[1], len(cohort)), shard, cohort)
    blocks = range(plan.blocks)
    assert [p for block in blocks for p in plan.span(block)] == list(range(plan.partitions))
    assert [p for block in blocks for p in plan.members(block)] == list(cohort)
    assert [place for block in blocks for place in plan.places(block)] == list(range(len(cohort)))
    owned = [{p // shard for p in plan.members(block)} for block in blocks]
    assert sum(map(len, owned)) == len({p // shard for p in cohort})
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for block in blocks:
        assert set(plan.members(block)) == set(cohort) & set(plan.span(block))


@given(SIZES, st.integers(1, 9))
def test_a_shard_is_in_one_block_and_no_block_is_empty(sizes: tuple[int, int], shard: int) -> None:
    partitions, blocks = sizes
    plan = RoundPlan(partitions, min(blocks, len(RoundPlan(partitions, shard=shard).shards)), shard)
    spans = [plan.span(block) for block in range(plan.blocks)]
    assert [partition for span in spans for partition in span] == list(range(partitions))
    assert all(spans) and all(span.start % shard == 0 for span in spans)
    assert [plan.block_of(p) for p in range(partitions)] == [b for b, span in enumerate(spans) for _ in span]
    for block, span in enumerate(spans):
        assert [p for a, b in plan.nodes(block) for p in range(a, b)] == list(span)


def test_blocks_of_shards_by_hand() -> None:
    """Ten partitions in shards of four are 0-3, 4-7 and 8-9; two blocks take two of them and one."""
    plan = RoundPlan(10, 2, 4)
    assert (len(plan.shards), plan.span(0), plan.span(1)) == (3, range(8), range(8, 10))


@given(SIZES, st.integers(2, 9))
def test_no_fold_has_more_results_than_the_fan_in_and_each_result_goes_into_one(sizes, fan_in: int) -> None:
    plan = RoundPlan(*sizes)
    results = plan.blocks
    for groups in plan.folds(fan_in):
        assert [each for group in groups for each in group] == list(range(results))
        assert max(map(len, groups)) <= fan_in
        results = len(groups)
    assert results <= fan_in


def work(seed: int) -> Work:
    return Work(None, None, None, seed)  # type: ignore[arg-type]


def test_a_maps_seed_is_drawn_from_run_round_and_partition() -> None:
    wanted = int(hashlib.sha256(b"5,3,2").hexdigest()[:16], 16) >> 1
    assert work(5).map_seed(3, 2) == wanted
    seeds = {work(run).map_seed(r, p) for run in range(3) for r in range(30) for p in range(-1, 9)}
    assert len(seeds) == 3 * 30 * 10


def test_a_window_is_as_wanted_or_about_a_second_of_rounds() -> None:
    """Of ten where the store is far away."""
    assert window_size(7, None) == 7
    assert [window_size(None, seconds) for seconds in (None, 1.0, 0.24, 1e-9)] == [1, 1, 4, LARGEST_WINDOW]
    far = [window_size(None, seconds, long=True) for seconds in (None, 0.01, 1.0, 4.0, 60.0)]
    assert far == [1, 50, 10, 2, 1]


def test_rounds_are_replayed_at_once_under_one_split() -> None:
    windows = list(replay_windows(range(1, 71), lambda round: 0))
    assert windows == [list(range(1, 33)), list(range(33, 65)), list(range(65, 71))]
    assert list(replay_windows([1, 2, 5, 6, 9], lambda round: round // 5)) == [[1, 2], [5, 6, 9]]
    assert list(replay_windows([], lambda round: 0)) == []
