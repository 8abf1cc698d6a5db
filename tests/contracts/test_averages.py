"""What each average of `roundweave list averages` promises: equal networks give themselves, in any order.

An average of the table is a function of tensors alone, and promises more. Another one is a row of the table.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.merging.recipes import ABOUT, SEARCHED
from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.values.lazy import BLOCK
from roundweave.tasks.merging.averages.base import Average
from roundweave.tasks.merging.averages.recipe import Recipe, Wanted, combining
from roundweave.tasks.merging.averages.table import AVERAGES
from roundweave.tasks.merging.gallery import Blend, combined_by
from tests.storage.checkpoints.reading import read_checkpoint
from tests.tasks.merging import mine
from tests.tasks.merging.by_hand import TENSORS, lazy, same_bits

pytestmark = pytest.mark.usefixtures("without_prefect")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.bool, torch.int16, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def kind_of(name: str) -> type[Average]:
    return AVERAGES[name].load()


def whole(name: str) -> dict[str, object]:
    """Options with which nothing is dropped."""
    return {"density": (1.0,)} if "density" in {each.name for each in dataclasses.fields(kind_of(name))} else {}


def drawn(seed: int, dtype: torch.dtype = torch.float32, **shapes: tuple[int, ...]) -> TENSORS:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def state(seed: int) -> TENSORS:
    torch.manual_seed(seed)
    return dict(mine.layers().state_dict())


def based(name: str, base: TENSORS) -> TENSORS | None:
    return base if kind_of(name).needs_base else None


def recipe(name: str, tensors: TENSORS, *coefficients: float, **options: object) -> Recipe:
    return Wanted(kind_of(name), coefficients, options).recipe(tuple(tensors))


@pytest.fixture
def merged(tmp_path: Path) -> Callable[..., TENSORS]:
    """The file of a merge by an average, on examples where it needs them."""

    def merge(average: str, states: list[TENSORS], base: TENSORS, **fields: object) -> TENSORS:
        places = [f"{tmp_path}/{number}.safetensors" for number in range(3)]
        for place, state in zip(places, [*states, base], strict=True):
            write_checkpoint(place, state)
        given = {"data": f"{mine.__file__}:data"} if average in SEARCHED else {"match": "none", "input": "2x6"}
        given |= {"base": places[2]} if average not in SEARCHED and kind_of(average).needs_base else {}
        given |= {"model": f"{mine.__file__}:layers", "examples": 200, "points": 3, "out": f"{tmp_path}/out.pt"}
        given |= {"executor": "inline", "force": True, "root": tmp_path}
        rw.merge(rw.MergeConfig(networks=tuple(places[:2]), average=average, **given | fields))
        return read_checkpoint(given["out"])

    return merge


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough if n in SEARCHED and n != "pleas" else []) for n in ABOUT]
)
class TestAverage:
    def test_equal_networks_give_themselves_by_the_same_names_and_types(self, merged, name) -> None:
        network = state(0)
        found = merged(name, [network, network], network)
        torch.testing.assert_close(found, network, rtol=1e-3, atol=2e-5)

    def test_the_order_of_networks_is_no_matter(self, merged, name) -> None:
        if name == "fisher":
            pytest.skip("labels are drawn for each network by its number")
        one, other, base = map(state, range(3))
        fields = {"match": "none"} | ({} if name in SEARCHED else whole(name))
        found, turned = (merged(name, pair, base, **fields) for pair in ([one, other], [other, one]))
        torch.testing.assert_close(found, turned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", AVERAGES)
class TestAverageOfTheTable:
    def test_it_pickles_and_prints(self, name) -> None:
        average = kind_of(name)()
        assert pickle.loads(pickle.dumps(average)) == average
        assert repr(average).startswith(kind_of(name).__name__)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_tensors_keep_shape_and_type_and_networks_are_left_as_they_are(self, name, dtype) -> None:
        shapes = {"w": (3, 4), "empty": (0, 3), "scalar": ()}
        one, other, base = (drawn(seed, dtype, **shapes) for seed in range(3))
        before = [{n: t.clone() for n, t in state.items()} for state in (one, other, base)]
        combined = combining(
            recipe(name, one, 1, 2) if name != "slerp" else recipe(name, one, 1, 1), [one, other], base
        )
        for tensor, given in one.items():
            assert (combined(tensor).shape, combined(tensor).dtype) == (given.shape, given.dtype)
        assert all(same_bits(*pair) for pair in zip(before, (one, other, base), strict=True))

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_equal_networks_give_themselves_in_any_type(self, name, dtype) -> None:
        network = drawn(0, dtype, w=(5, 7), b=(0,), scalar=())
        combined = combining(recipe(name, network, 1, 1), [network, network], based(name, network))
        torch.testing.assert_close({n: combined(n) for n in network}, network)

    def test_a_type_of_few_bits_is_rounded_once(self, name) -> None:
        """Each element is that of the exact average in float64, rounded."""
        states = [drawn(seed, torch.bfloat16, w=(50,)) for seed in range(3)]
        exact = [{n: t.double() for n, t in state.items()} for state in states]
        made = recipe(name, states[0], 1, 1)
        found, wanted = (combining(made, each[:2], based(name, each[2]))("w") for each in (states, exact))
        torch.testing.assert_close(found, wanted.bfloat16(), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    def test_integers_and_bools_take_the_maximum(self, name, dtype) -> None:
        one, other, base = ({"n": torch.tensor(each).to(dtype)} for each in ([1, 0, 100], [3, 0, 2], [9, 1, 120]))
        found = combining(recipe(name, one, 1, 1), [one, other], base)("n")
        assert (found.tolist(), found.dtype) == (torch.tensor([3, 0, 100]).to(dtype).tolist(), dtype)

    def test_what_is_averaged_by_block_has_the_bits_of_whole_tensors(self, name) -> None:
        if not kind_of(name).elementwise:
            pytest.skip("it is computed of whole tensors")
        count = kind_of(name).networks or 6  # from five networks on, torch.sum would add in another order
        states = [lazy(drawn(seed, w=(3, BLOCK - 5), b=(7,), none=(0,))) for seed in range(count + 1)]
        base = states.pop() if kind_of(name).needs_base else None
        coefficients = tuple(0.3 + number for number in range(count))
        made = recipe(name, states[0], *coefficients)
        found = combined_by(Blend(("",) * count, coefficients, recipe=made), states[:count], base)
        wanted = combining(made, states[:count], base)
        assert same_bits(found, {each: wanted(each) for each in made})

    def test_variances_stay_above_zero_whatever_the_coefficients_are(self, name) -> None:
        for coefficients in ((1.0, -1.0), (-2.0, 0.0), (0.0, 0.0)):
            of_buffers = kind_of(name)().buffer_coefficients(coefficients)
            assert min(of_buffers) >= 0 and sum(of_buffers) > 0

    def test_chance_is_the_seeds_alone(self, name) -> None:
        one, other, base = (drawn(seed, w=(64,)) for seed in range(3))
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(combining(recipe(name, one, 1, 1), [one, other], base)("w"))
        assert torch.equal(*found)
