"""The shards of a server: equal spans that together are the whole."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.arrivals.shards import joined, state_shard, update_shard

DTYPES = ("float32", "float64", "bfloat16", "float16")


def vectors(sizes: dict[str, int], seed: int) -> Vectors:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(n, generator=generator).to(getattr(torch, k)) for k, n in sizes.items()}


def same(left: Vectors, right: Vectors) -> bool:
    return list(left) == list(right) and all(
        left[k].dtype == right[k].dtype and torch.equal(left[k], right[k]) for k in left
    )


Sizes = st.dictionaries(st.sampled_from(DTYPES), st.integers(1, 20), min_size=1)


@given(sizes=Sizes, shards=st.integers(1, 25))
def test_what_is_split_and_joined_is_what_it_was(sizes: dict[str, int], shards: int) -> None:
    memory = {"velocity": vectors(sizes, 1), "second": vectors(sizes, 2)}
    buffers, frozen = {"float32": torch.ones(3)}, {"int64": torch.arange(2)}
    state = State(vectors(sizes, 0), buffers, frozen, memory, round=5)
    parts = [state_shard(state, shard, shards) for shard in range(shards)]
    found = joined(parts)
    assert same(found.params, state.params)
    assert all(same(found.memory[slot], memory[slot]) for slot in memory)
    assert (found.buffers, found.frozen, found.round) == (buffers, frozen, 5)
    assert all(not part.buffers and not part.frozen for part in parts[1:])
    for name in sizes:
        lengths = [len(part.params[name]) for part in parts]
        assert max(lengths) - min(lengths) <= 1


@given(sizes=Sizes, shards=st.integers(1, 25))
def test_an_update_goes_to_shards_as_the_state_does(sizes: dict[str, int], shards: int) -> None:
    direction, control = vectors(sizes, 0), vectors(sizes, 1)
    update = Update(direction, {"float32": torch.ones(3)}, {"control": control}, 7, carry={"own": direction})
    state = State(direction, memory={"control": control})
    for shard in range(shards):
        part, held = update_shard(update, shard, shards), state_shard(state, shard, shards)
        assert same(part.direction, held.params)
        assert same(part.extras["control"], held.memory["control"])
        assert (part.weight, part.carry, bool(part.buffers)) == (7, {}, shard == 0)
