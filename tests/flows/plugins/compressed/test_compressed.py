"""What each compressor makes of numbers, and what else sends packed directions; see also `test_compressors`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.flows.plugins.compressed.compressors import SLOT, Compressed, RandomK, packed
from roundweave.storage.values.tensors import TensorSpec, dtype_name, same_bits, views
from roundweave.storage.values.tensors import pack as vectors_of
from roundweave.tasks.algorithms.maps.gradient import Downpour
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pieces import accumulator
from roundweave.tasks.rounds.guard import checked_update
from tests.flows.plugins.compressed.packing import ODD, SMALL, drawn, find_compressor, rounds, sent_of
from tests.rows import but_first


def one(named: str, values: list[Any], dtype: str = "float32", seed: int = 0) -> list[Any]:
    """What a single tensor is after it was packed and unpacked."""
    tensor = torch.tensor(values, dtype=accumulator(dtype))
    specs = (TensorSpec("it", dtype, tuple(tensor.shape)),)
    there = packed(find_compressor(named), specs, {dtype: tensor.flatten()}, seed).unpack()[dtype]
    assert dtype_name(there.dtype) == dtype
    return there.view(tensor.shape).tolist()


def test_bf16_rounds_to_the_nearest_of_8_bits() -> None:
    assert one("bf16", [1.0, 1 + 2**-9, 1 + 2**-7 + 2**-9, -3.0]) == [1.0, 1.0, 1 + 2**-7, -3.0]
    assert one("bf16", [1 + 2**-10], "float16") == [1 + 2**-10]  # of 2 bytes already
    values = drawn(SMALL, 0)["float32"]
    lost = (torch.tensor(one("bf16", values.tolist())) - values).abs()
    assert lost.any()
    assert (lost <= 2**-8 * values.abs()).all()


def test_int8_draws_one_of_the_two_multiples_around_a_value() -> None:
    """Of 100 the power is 1, the least of which it is at most 127 multiples; of 1 it is 1/64, of 127.9 it is 2."""
    around: dict[tuple[float, ...], list[set[float]]] = {
        (100.0, 50.4, -0.4, 0.0): [{100}, {50, 51}, {-1, 0}, {0}],
        (1.0, 0.3, -0.99): [{1}, {19 / 64, 20 / 64}, {-1, -63 / 64}],
        (-127.0, 126.5): [{-127}, {126, 127}],
        (127.9, -3.0): [{126, 128}, {-2, -4}],
        (2.0**-149, 0.0): [{2.0**-149}, {0}],
    }
    for values, wanted in around.items():
        sent = [one("int8", list(values), seed=seed) for seed in range(100)]
        assert [{*each} for each in zip(*sent, strict=True)] == wanted
        assert one("int8", list(values), seed=7) == sent[7]
    assert one("int8", [5e-324, 0.0], "float64") == [5e-324, 0.0]
    assert one("int8", [1.7e308], "float64") == [pytest.approx(1.7e308, rel=0.01)]
    assert one("int8", [65504.0], "float16", seed=1) == [float("inf")]  # 64 * 2^10, which the guard refuses


def test_the_mean_of_what_int8_draws_is_the_value() -> None:
    """A mean of 1000 draws is off by 0.085 once in 10^6 times (Hoeffding: 2 exp(-2 * 1000 * 0.085^2))."""
    values = [number * 1.01 for number in range(-100, 101)]  # the power is 1
    means = np.mean([one("int8", values, "float64", seed) for seed in range(1000)], axis=0)
    np.testing.assert_allclose(means, values, rtol=0, atol=0.085)


def test_sign_is_the_mean_size_of_each_tensor() -> None:
    assert one("sign", [[1.0, -2.0], [3.0, -6.0]]) == [[3.0, -3.0], [3.0, -3.0]]
    specs = (TensorSpec("a", "float32", (3,)), TensorSpec("b", "float32", (2,)))
    sent = packed(find_compressor("sign"), specs, {"float32": torch.tensor([1.0, -2, 3, 0.5, 0])}, 0)
    assert sent.unpack()["float32"].tolist() == [2.0, -2.0, 2.0, 0.25, 0.25]
    assert sent.sent["a"]["negative"].tolist() == [0b01000000]


def test_top_k_sends_the_largest_of_all_tensors_of_a_type() -> None:
    specs = (TensorSpec("a", "float32", (2,)), TensorSpec("b", "float32", (2,)))
    sent = packed(find_compressor("top_k:0.5"), specs, {"float32": torch.tensor([1.0, -5, 2, 4])}, 0)
    assert sent.sent["float32"]["places"].tolist() == [1, 3]
    assert sent.unpack()["float32"].tolist() == [0.0, -5.0, 0.0, 4.0]
    assert one("top_k:0.07", [float(n) for n in range(100)])[92:] == [0.0, *range(93, 100)]
    assert one("top_k:0.001", [1.0, 3.0, 2.0]) == [0.0, 3.0, 0.0]  # one at least


def test_random_k_draws_places_from_the_seed_and_sends_values_alone() -> None:
    values = torch.arange(1.0, 101.0)
    specs = (TensorSpec("a", "float32", (100,)),)
    sent = [packed(RandomK(0.2), specs, {"float32": values}, seed) for seed in (0, 0, 1)]
    assert {name: tensor.shape for name, tensor in sent[0].sent["float32"].items()} == {"values": (20,)}
    first, again, other = (each.unpack()["float32"] for each in sent)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for there in (first, other):
        assert int(there.count_nonzero()) == 20
        assert torch.equal(there[there != 0], values[there != 0])


def test_powersgd_sends_a_matrix_of_low_rank_as_it_is() -> None:
    """Of any other, what is lost is at right angles to what is sent, which has the rank."""
    outer = [[float(row * column) for column in (1, -2, 4, 8)] for row in (3, 1, -2, 5)]
    np.testing.assert_allclose(one("powersgd:1", outer, "float64"), outer, rtol=1e-14)
    matrix = torch.randn(12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sent = torch.tensor(one("powersgd:2", matrix.tolist(), "float64"), dtype=torch.float64)
    assert torch.linalg.matrix_rank(sent) == 2
    assert torch.sum(sent * (matrix - sent)).item() == pytest.approx(0, abs=1e-12)
    assert one("powersgd:1", [0.1, 0.2, 0.3]) == torch.tensor([0.1, 0.2, 0.3]).tolist()
    assert one("powersgd:2", [[1.0, 2.0], [3.0, 5.0]]) == [[1.0, 2.0], [3.0, 5.0]]  # factors are no smaller


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_errors_far_smaller_than_the_direction_are_kept_in_narrow_types(dtype: str) -> None:
    """A number that would be lost beside 1 waits where 8 bits hold the sum of 200 of it."""
    specs = (TensorSpec("a", dtype, (2,)),)
    direction = {dtype: torch.tensor([1.0, 2.0**-9], dtype=getattr(torch, dtype))}
    updates, carry = rounds("top_k:0.5", specs, [direction] * 200)
    assert all(update.direction[dtype].tolist() == [1.0, 0.0] for update in updates)
    assert carry[SLOT][dtype].tolist() == [0.0, 200 * 2.0**-9]


def test_the_guard_keeps_what_is_packed() -> None:
    [update], _ = rounds("int8", SMALL, [drawn(SMALL, 0)])
    checked, refusal = checked_update(rw.Layout(SMALL), update, {})
    assert refusal is None
    assert checked.packed is update.packed is not None
    plain = rw.Update(update.direction)
    assert plain.to_send() is plain.received() is plain


@pytest.mark.parametrize(
    "returned",
    [
        None,
        rw.Update({"float32": torch.zeros(35)}),
        rw.Update({"float32": torch.zeros(1, 36)}),
        rw.Update({"float32": torch.zeros(36, dtype=torch.float64)}),
        rw.Update({"float64": torch.zeros(36, dtype=torch.float64)}),
        rw.Update({}),
    ],
    ids=["none", "short", "matrix", "type", "name", "empty"],
)
def test_what_cannot_be_packed_is_refused_as_without(returned: Any) -> None:
    refusal = checked_update(rw.Layout(SMALL), returned, {})[1]
    assert refusal is not None
    assert checked_update(rw.Layout(SMALL), sent_of("sign", returned), {}, carry=(SLOT,))[1] == refusal
    assert checked_update(rw.Layout(SMALL), sent_of("int8", returned), {})[1] == refusal


def test_extras_are_sent_as_they_are() -> None:
    """SCAFFOLD's control variate is that of the direction before it is packed, and packs beside its carry."""
    what = Objective(ModelSpec("linear", (3,), 1, "float64", seed=0), "mse")
    params = what.initial().params
    state = replace(what.initial(), memory={"control": {k: torch.zeros_like(v) for k, v in params.items()}})
    examples = rw.Examples(torch.randn(8, 3, dtype=torch.float64), torch.ones(8, dtype=torch.float64))
    map = rw.Scaffold(local_steps=2, lr=0.1)
    plain, update = (each(what, state, examples, {}, 0) for each in (map, Compressed(map, RandomK(0.5))))
    assert torch.equal(plain.extras["control"]["float64"], update.extras["control"]["float64"])
    assert not torch.equal(plain.direction["float64"], update.direction["float64"])
    assert {*update.carry} == {"control", SLOT}


OF_SOME = {"algorithm": "scaffold", "cohort": 2, "keep": "states"}  # beside another carry, of some partitions
OTHERS: list[dict[str, Any]] = [
    {"algorithm": "downpour", "rounds": 6},  # by replicas that fetch
    {"algorithm": "fed_buff", "buffer": 2, "rounds": 6},
    {"algorithm": "fed_nova", "dtype": "bfloat16"},
    {"algorithm": "afl", "precision": "bf16"},
    {"algorithm": "diloco", "precision": "fp16"},
    {"algorithm": "sync_sgd", "reduce": "median", "score_partitions": 0.2},
]


@pytest.mark.parametrize("fields", but_first([OF_SOME], OTHERS), ids=lambda fields: fields["algorithm"])
def test_other_algorithms_carry_the_error_too(fields: dict[str, Any], train) -> None:
    steps = {} if fields["algorithm"] in ("sync_sgd", "downpour") else {"local_steps": 2}
    run = train(**{"rounds": 3, "partitions": 3, "compress": "top_k:0.1", **steps, **fields})
    assert run.replay("all", executor="inline").identical
    errors = [update.carry[SLOT] for update in run.carried("last").values()]
    assert len(errors) == 3
    assert all(next(iter(error.values())).count_nonzero() for error in errors)


MATCHED = {"algorithm": "matched", "local_steps": 2}
REPLICAS = {"algorithm": "downpour", "push_every": 1, "fetch_every": 2, "rounds": 6}


@pytest.mark.parametrize(("named", "fields"), but_first([("int8", MATCHED)], [("bf16", REPLICAS)]))
def test_rounding_goes_with_orders_of_units_and_replicas(named: str, fields: dict[str, Any], train) -> None:
    fields = {"rounds": 3, "partitions": 2, **fields}
    run = train(**fields, compress=named)
    assert run.replay("all", executor="inline").identical
    assert run.history()["refused"].sum() == 0
    assert not any(SLOT in update.carry for update in run.carried("last").values())
    assert run.digest != train(**fields, name="plain").digest


def test_a_replica_that_fetches_after_each_push_keeps_its_error() -> None:
    assert Downpour().fetch_ends_carry
    assert not Compressed(Downpour(), find_compressor("sign")).fetch_ends_carry
    replica = Compressed(Downpour(push_every=1, fetch_every=2), find_compressor("int8"))
    assert (replica.carry, replica.fetch_ends_carry) == (("replica",), True)


def test_pieces_are_put_together_in_the_order_of_the_network() -> None:
    """Of a network with all of its tensors apart, each is what it is alone."""
    values = drawn(ODD, 1)
    whole = views(ODD, packed(find_compressor("int8"), ODD, values, 0).unpack())
    for spec in ODD:
        given = vectors_of([spec], {spec.name: views(ODD, values)[spec.name]})
        alone = packed(find_compressor("int8"), [spec], given, 0)
        assert same_bits(alone.unpack()[spec.dtype], whole[spec.name].flatten())


def test_a_partition_that_sits_out_keeps_its_error(train) -> None:
    run = train(rounds=6, partitions=3, cohort=1, local_steps=3, lr=0.05, compress="sign")
    sources = run.round(6).commit.carry_from
    assert len(set(sources.values())) == len(sources) > 1  # from another round each
    for partition, source in sources.items():
        then, last = (run.carried(number)[partition].carry[SLOT]["float32"] for number in (source, 6))
        assert torch.equal(then, last)
