"""Shares of the batch before the first of the shared layers."""

from __future__ import annotations

import pytest

from storage.errors import ModelError
from tests.tasks.compute.tensor_parallel.networks import objective_of, shares_of


def test_what_is_before_the_first_shared_layer_is_trained_on_shares_of_the_batch() -> None:
    shares = shares_of(objective_of("alexnet"), 2, hybrid=True)
    assert shares.joins == "8"
    assert shares.before == {"0.weight", "0.bias", "4.weight", "4.bias"}


def test_layers_before_that_are_not_sliced() -> None:
    """The first layer would be, did all ranks have its examples."""
    deep = objective_of("deep", batch_norm=False, widths=[20, 20])
    assert shares_of(deep, 2).sliced == ("lead", "rest.6")
    shares = shares_of(deep, 2, hybrid=True)
    assert (shares.joins, shares.sliced) == ("rest.0", ("rest.6",))


@pytest.mark.parametrize(
    ("model", "options", "units", "says"),
    [
        ("chain", {}, (), r"nothing is trained before 0, the first of the shared layers; leave hybrid out$"),
        (
            "deep",
            {},
            ("rest.0",),
            r"norm normalises over the batch, of which ranks have shares; leave hybrid out$",
        ),
        (
            "alexnet",
            {"norm": True},
            (),
            r"1 normalises over the batch, of which ranks have shares; leave hybrid out$",
        ),
        ("gpt", {"width": 16}, (), r"shares of the batch before .* give another function; leave hybrid out$"),
        (
            "encoder",
            {},
            (),
            r"layer.self_attn cannot join shares of a batch, as linear layers do; leave hybrid out$",
        ),
    ],
)
def test_what_cannot_be_a_hybrid_is_refused(
    model: str, options: dict[str, object], units: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        shares_of(objective_of(model, **options), 2, units, hybrid=True)
