"""Who receives a packed direction has the bits of its sender; what it lacks waits, or is lost by rounding alone.

A compressor is a row of `ROWS`. With error feedback, a partition carries what it has not sent.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.plugins.compressed import COMPRESSORS
from roundweave.flows.plugins.compressed.compressors import SLOT, packed
from roundweave.storage.values.state import Layout, Update
from roundweave.storage.values.tensors import TensorSpec, same_bits, tensor_bytes, views
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.numerics.pieces import accumulator
from roundweave.tasks.rounds.guard import checked_update
from tests.flows.plugins.compressed.packing import ODD, SMALL, drawn, find_compressor, rounds, sent_of
from tests.rows import but_first

ROWS = {
    "bf16": 36 * 2,
    "int8": (2 + 32) + (2 + 4),
    "sign": (4 + 32 // 8) + (4 + 1),
    "top_k:0.25": 9 * (4 + 4),
    "random_k:0.25": 9 * 4,
    "powersgd:1": (4 + 8) * 4 + 4 * 4,
}
"""The bytes of what is sent of a weight (4, 8) and a bias (4,), by how the compressor is asked for."""
ON_CLUSTER = ["top_k:0.25"]
NONE = (TensorSpec("nothing", "float32", (0, 2)),)
BITS = {"float32": 32, "bfloat16": 32, "float16": 16}
FEW = settings(max_examples=12)
FIELDS: dict[str, Any] = {"rounds": 2, "partitions": 3, "local_steps": 3, "lr": 0.05}


def slots(named: str) -> tuple[str, ...]:
    """What is carried beside what the map carries."""
    return (SLOT,) if find_compressor(named).error_feedback else ()


def test_each_compressor_has_a_row() -> None:
    assert {named.partition(":")[0] for named in ROWS} == {*COMPRESSORS}


@pytest.mark.parametrize("named", ROWS)
class TestCompressor:
    def test_bytes_are_counted_of_what_is_sent(self, named: str) -> None:
        """Extras and buffers go as they are, 20 bytes, and the error takes 144."""
        more = {"buffers": {"int64": torch.zeros(1).long()}, "extras": {"more": {"float32": torch.zeros(3)}}}
        update = sent_of(named, Update(drawn(SMALL, 0), weight=2, metrics={"train_loss": 0.5}, **more))
        assert update.metrics == {"train_loss": 0.5, "packed_bytes": ROWS[named]}
        assert tensor_bytes(update.to_send()) == ROWS[named] + 20 + 144 * len(slots(named))
        assert (update.weight, {*update.carry}) == (2, {*slots(named)})

    @pytest.mark.parametrize("dtype", BITS)
    @FEW
    @given(data=st.data(), seed=st.integers(0, 5))
    def test_what_was_packed_before_is_sent_as_it_is(self, named: str, dtype: str, data, seed: int) -> None:
        """Whatever is drawn the second time, but for the places of `random_k`; `powersgd` sends vectors whole."""
        # Within bounds, as hypothesis would draw infinities and throw them away.
        most = float(np.finfo(f"float{BITS[dtype]}").max)
        floats = st.floats(-most, most, width=BITS[dtype])
        values = torch.tensor(data.draw(st.lists(floats, max_size=20)), dtype=accumulator(dtype))
        specs = (TensorSpec("a", dtype, (values.numel(),)),)
        once = packed(find_compressor(named), specs, {dtype: values}, seed).unpack()[dtype]
        if once.isfinite().all():  # the largest of float32 are rounded up, and the guard refuses that
            wide = {dtype: once.to(accumulator(dtype))}
            again = packed(find_compressor(named), specs, wide, seed + (not named.startswith("random_k")))
            assert torch.equal(once, again.unpack()[dtype])

    @FEW
    @given(seed=st.integers(0, 1000))
    def test_what_was_sent_and_what_waits_are_all_directions_or_nothing_waits(self, named: str, seed: int) -> None:
        specs = (TensorSpec("weight", "float64", (6, 7)), TensorSpec("bias", "float64", (6,)))
        directions = [drawn(specs, seed + number) for number in range(8)]
        updates, carry = rounds(named, specs, directions)
        pairs = [
            (sent.direction["float64"], all["float64"]) for sent, all in zip(updates, directions, strict=True)
        ]
        assert any(sent.ne(all).any() for sent, all in pairs)
        assert {*carry} == {*slots(named)}
        if carry:
            sent, wanted = (sum(each) for each in zip(*pairs, strict=True))
            torch.testing.assert_close(sent + carry[SLOT]["float64"], wanted, rtol=0, atol=1e-12)
        else:
            alone = sent_of(named, directions[-1], {}, 7, specs)
            assert same_bits(alone.direction["float64"], updates[-1].direction["float64"])

    @pytest.mark.parametrize("specs", [ODD, NONE], ids=["odd", "none"])
    def test_updates_that_travel_packed_arrive_to_the_bit(self, named: str, specs) -> None:
        """Also with several types of parameters, a scalar, and tensors without elements."""
        [*_, update], _ = rounds(named, specs, [drawn(specs, seed) for seed in range(3)])
        sent = pickle.loads(pickle.dumps(update.to_send()))
        arrived, here = sent.received(), update.received()
        assert (sent.direction, arrived.packed, here.packed) == ({}, None, None)
        assert here.direction is update.direction
        for dtype, vector in update.direction.items():
            assert same_bits(arrived.direction[dtype], vector)
            assert all(same_bits(arrived.carry[slot][dtype], update.carry[slot][dtype]) for slot in slots(named))
        assert ({*arrived.carry}, arrived.metrics) == ({*slots(named)}, update.metrics)

    @pytest.mark.parametrize("specs", [ODD, NONE], ids=["odd", "none"])
    def test_nothing_is_sent_of_zeros(self, named: str, specs) -> None:
        zeros = {dtype: torch.zeros_like(vector) for dtype, vector in drawn(specs, 0).items()}
        updates, carry = rounds(named, specs, [zeros] * 2)
        for vectors in (*(update.direction for update in updates), *carry.values()):
            assert not any(vector.float().count_nonzero() for vector in vectors.values())
            shapes = {name: tensor.shape for name, tensor in views(specs, vectors).items()}
            assert shapes == {spec.name: spec.shape for spec in specs}

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_numbers_that_are_not_finite_are_refused_as_without(self, named: str, bad: float) -> None:
        direction = drawn(SMALL, 0)
        direction["float32"][[3, 7]] = bad
        for update in (Update(direction), sent_of(named, direction)):
            refusal = checked_update(Layout(SMALL), update, {}, carry=(*update.carry,))[1]
            assert refusal == "direction of weight has 2 non-finite of 32 numbers"

    def test_sums_with_errors_that_are_not_finite_are_refused(self, named: str) -> None:
        huge = {"float32": torch.full((36,), 3e38)}
        for slot in slots(named):
            refusal = checked_update(Layout(SMALL), sent_of(named, huge, {slot: huge}), {}, carry=(slot,))[1]
            assert refusal == "direction of weight has 32 non-finite of 32 numbers"

    def test_directions_with_a_gradient_of_their_own_are_packed(self, named: str) -> None:
        [update], carry = rounds(named, SMALL, [{"float32": drawn(SMALL, 0)["float32"].requires_grad_()}])
        assert not update.direction["float32"].requires_grad
        assert not any(vectors["float32"].requires_grad for vectors in carry.values())


@pytest.mark.parametrize("named", but_first(ON_CLUSTER, ROWS))
def test_a_run_is_the_same_on_a_cluster_resumed_and_replayed(named: str, train, client) -> None:
    fields = FIELDS | {"compress": named}
    whole = train(**fields, name="whole")
    train(**fields | {"rounds": 1}, name="short")
    assert whole.digest == train(**fields, name="short").digest
    shared = train(GraphExecutor(client), **fields, name="shared")
    assert shared.digest == whole.digest
    assert shared.replay("all", executor="inline").identical
