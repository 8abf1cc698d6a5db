"""The decoder: it sees no later place, learns, and its units can be matched."""

from __future__ import annotations

import json

import pytest
import torch

from storage.errors import ModelError
from tasks.data.examples import Examples
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.matching import check_function, find_units
from tasks.networks.objective import ModelSpec, Objective
from tasks.networks.reference import Gpt
from tasks.numerics import pinned

TOKENS = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(0))


def objective(**options: int) -> Objective:
    small = {"width": 12, "depth": 2, "heads": 3}
    return Objective(ModelSpec("gpt", (7,), 11, "float32", 0, json.dumps(small | options)), "cross_entropy")


def network() -> Gpt:
    return objective().model.build().double().eval()


def test_it_gives_logits_for_each_place() -> None:
    assert network()(TOKENS).shape == (3, 7, 11)
    assert network()(TOKENS[:, :4]).shape == (3, 4, 11)


@pytest.mark.parametrize("place", range(7))
def test_no_place_sees_a_later_one_and_every_later_one_sees_it(place: int) -> None:
    model = network()
    changed = TOKENS.clone()
    changed[:, place] = (changed[:, place] + 1) % 11
    differ = (model(changed) != model(TOKENS)).any(-1)
    assert not differ[:, :place].any()
    assert differ[:, place:].all()


def test_a_shorter_sequence_gives_the_same_logits() -> None:
    torch.testing.assert_close(network()(TOKENS[:, :3]), network()(TOKENS)[:, :3])


def test_its_units_are_found_and_may_be_permuted() -> None:
    model = network()
    units = find_units(model, (TOKENS,))
    assert units.coverage > 0.8
    assert units.unknown == {}
    assert check_function(model, (TOKENS,), units) <= 1e-10


def test_the_mask_is_not_kept() -> None:
    what = objective()
    assert what.layout.buffers == ()
    assert what.network(what.initial()).blocks[0].attention.future.sum() == 21


def test_it_trains_with_deterministic_operations_to_the_same_bits() -> None:
    what, examples = objective(), Examples(TOKENS, (3 * TOKENS + 1) % 11)
    train = LocalSteps(local_steps=60, batch_size=2, optimizer="Adam", lr=0.03)
    with pinned(0, threads=1):
        first, second = (train(what, what.initial(), examples, {}, 1) for _ in range(2))
        before = Gradient()(what, what.initial(), examples, {}, 0).metrics["train_loss"]
    assert torch.equal(first.direction["float32"], second.direction["float32"])
    assert first.metrics["train_loss"] < 0.6 * before
    assert before == pytest.approx(2.398, abs=0.05), "the loss of a guess among 11"


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        ((1, 8, 8), {}, r"the gpt reads sequences of tokens of shape \(time,\), not \(1, 8, 8\)"),
        ((7,), {"heads": 5}, "the gpt's width 12 cannot be divided among 5 heads"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, options, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Gpt(inputs, 11, **{"width": 12, **options})


def test_tokens_may_be_more_than_classes() -> None:
    assert Gpt((7,), 2, width=8, heads=2, vocabulary=11)(TOKENS).shape == (3, 7, 2)
