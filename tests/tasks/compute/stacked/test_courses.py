"""In which order replicas take their batches together, against each one's batches alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.compute.stacked import courses
from tasks.compute.stacked.courses import Course, course, phases
from tasks.data.examples import Examples
from tasks.maps.backprop import batches

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def numbered(first: int, count: int) -> Examples:
    """Examples that no other replica has."""
    return Examples(torch.arange(first, first + count).float()[:, None], torch.arange(first, first + count))


def taken(every: list[Course], places: int) -> list[list[list[int]]]:
    """The targets of each batch that each replica takes."""
    found: list[list[list[int]]] = [[] for _ in every]
    for phase in phases(every, places):
        for batch in phase.batches:
            inputs, targets = batch.inputs, batch.targets
            assert inputs.is_contiguous()
            assert inputs.storage_offset() == targets.storage_offset() == 0
            assert len(inputs) == len(targets) == places
            assert torch.equal(inputs.squeeze(-1).long(), targets)
            for place, member in enumerate(phase.members):
                found[member].append(targets[place].tolist())
            for copy in targets[len(phase.members) :]:
                assert torch.equal(copy, targets[0])
    return found


@settings(deadline=None, max_examples=25)
@given(SIZES, st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 9), st.integers(0, 2))
def test_each_replica_takes_its_own_batches_in_their_order(sizes, size, steps, more) -> None:
    parts = [numbered(100 * number, count) for number, count in enumerate(sizes)]
    every = [course(part, size, steps, seed) for seed, part in enumerate(parts)]
    wanted = [
        [batch.targets.tolist() for batch in batches(part, size, steps, seed)] for seed, part in enumerate(parts)
    ]
    assert taken(every, len(parts) + more) == wanted


@settings(deadline=None, max_examples=25)
@given(SIZES, st.integers(1, 20), st.integers(1, 4))
def test_it_is_so_however_few_batches_are_drawn_ahead(sizes, size, epochs) -> None:
    parts = [numbered(100 * number, count) for number, count in enumerate(sizes)]
    steps = [epochs * -(-count // size) for count in sizes]
    found = []
    for ahead in (1 << 24, 1, 64):
        before, courses.AHEAD = courses.AHEAD, ahead
        try:
            found.append(taken([course(p, size, s, 7) for p, s in zip(parts, steps, strict=True)], len(parts)))
        finally:
            courses.AHEAD = before
    assert found[0] == found[1] == found[2]


def test_steps_of_one_length_are_taken_together_by_hand() -> None:
    """Of 5, 4 and 6 examples in batches of 2: two steps of all, then the rests of 1, then 2."""
    every = [course(numbered(0, count), 2, -(-count // 2), 0) for count in (5, 4, 6)]
    found = [
        (phase.members, [tuple(batch.targets.shape) for batch in phase.batches]) for phase in phases(every, 4)
    ]
    assert found == [([0, 1, 2], [(4, 2)] * 2), ([2], [(4, 2)]), ([0], [(4, 1)])]
