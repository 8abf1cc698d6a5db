"""Which maps are told of as stragglers, and when: by hand-computed times."""

from __future__ import annotations

from roundweave.tasks.rounds.timing import Stragglers, Timing


def test_a_straggler_is_told_again_whenever_its_time_has_doubled(caplog) -> None:
    stragglers = Stragglers(2.0)
    for seconds in range(1, 18):
        stragglers.look([Timing(3, 2, float(seconds), 0.02)])
    assert caplog.messages == [
        f"round 3: partition 2 has been mapping for {seconds} s, the others took 0.02 s"
        for seconds in (2, 4, 8, 16)
    ]


def test_a_map_is_told_of_when_it_takes_five_times_as_long_as_others(caplog) -> None:
    stragglers = Stragglers(2.0)
    others = [Timing(took=0.5), Timing(took=1.0), Timing(took=8.0)]
    stragglers.look([Timing(1, 0, 4.9), *others])
    assert caplog.messages == []
    stragglers.look([Timing(1, 0, 5.0), *others])
    assert caplog.messages == ["round 1: partition 0 has been mapping for 5 s, the others took 1 s"]


def test_each_map_is_told_of_by_itself_and_a_process_without_one_is_not(caplog) -> None:
    stragglers = Stragglers(2.0)
    stragglers.look([Timing(1, 0, 3.0), Timing(1, 1, 3.0), Timing(took=None)])
    stragglers.look([Timing(2, 0, 3.0)])
    where = [line.partition(" has been")[0] for line in caplog.messages]
    assert where == ["round 1: partition 0", "round 1: partition 1", "round 2: partition 0"]
    assert all(line.endswith("none has ended yet") for line in caplog.messages)
