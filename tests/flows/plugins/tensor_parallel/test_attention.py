"""torch's attention, shared by heads in every way in which it is called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.flows.plugins.tensor_parallel.finding import is_sound
from roundweave.storage.errors import ModelError
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.networks.reference import MODELS
from tests.flows.plugins.tensor_parallel.networks import examples_of, objective_of, off, shares_of
from tests.rows import but_first

TIME = 4
STEPS = LocalSteps(local_steps=2, batch_size=7, lr=0.1)


class Attending(nn.Module):
    """Attention over what was read, or from it to something else of another width."""

    def __init__(
        self, inputs, outputs, mask="none", weights="left", cross=False, batched=True, heads=4, **options
    ):
        super().__init__()
        self.mask, self.weights, self.cross, self.batched = mask, weights, cross, batched
        key = {name: options[name] for name in ("kdim", "vdim") if name in options}
        self.widen = nn.Linear(inputs[1], 12)
        self.key, self.value = (nn.Linear(inputs[1], key.get(name, 12)) for name in ("kdim", "vdim"))
        self.attention = nn.MultiheadAttention(12, heads, **options)
        self.head = nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.attention.batch_first and self.batched:
            inputs = inputs.transpose(0, 1)
        query = key = value = self.widen(inputs)
        if self.cross:
            key, value = self.key(inputs), self.value(inputs)
        if self.batched:
            return self.head(self.attended(query, key, value, len(query.flatten(0, 1)) // TIME))
        return torch.stack([self.head(self.attended(*each, 1)) for each in zip(query, key, value, strict=True)])

    def attended(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, examples: int) -> torch.Tensor:
        """What is attended to, the mean over time."""
        time = -2 if self.attention.batch_first or not self.batched else 0
        options = {"need_weights": self.weights != "unasked", "average_attn_weights": "each" not in self.weights}
        attended, weights = self.attention(query, key, value, **options, **self.masks(examples, query.dtype))
        made = attended.mean(time)
        return made + weights.square().mean() if self.weights.endswith("used") else made

    def masks(self, examples: int, dtype: torch.dtype) -> dict[str, object]:
        future = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
        last = (torch.arange(examples)[:, None] + torch.arange(TIME)) % 3 == 2
        last = last if self.batched else last[0]
        heads = self.attention.num_heads
        # One an example, the same for all of its heads; and one for each head.
        each = future & (torch.arange(examples)[:, None, None] + torch.arange(TIME) > 1)
        apart = future & (torch.arange(examples * heads)[:, None, None] + torch.arange(TIME) > 1)
        return {
            "none": {},
            "bool": {"attn_mask": future},
            "float": {"attn_mask": torch.zeros(TIME, TIME, dtype=dtype).masked_fill(future, -1.5)},
            "each": {"attn_mask": each[:, None].expand(-1, heads, -1, -1).flatten(0, 1)},
            "apart": {"attn_mask": apart},
            "padding": {"key_padding_mask": last},
            "both": {"attn_mask": future, "key_padding_mask": last & (torch.arange(TIME) > 0)},
            "causal": {"attn_mask": future, "is_causal": True},
        }[self.mask]


@pytest.fixture(autouse=True)
def _attending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "attending", Attending)


def check(ranks: int = 2, **options: object) -> None:
    objective = objective_of("attending", **options)
    assert shares_of(objective, ranks).heads == ("attention",)
    assert off(objective, STEPS, ranks) < 1e-12


MASKS = ("none", "bool", "float", "each", "padding", "both", "causal")
EACH = [("float", "used"), ("each", "unasked")]


@pytest.mark.parametrize(("mask", "weights"), but_first(EACH, MASKS, ["unasked", "left", "used", "each"]))
def test_any_masks_and_weights(mask: str, weights: str) -> None:
    check(mask=mask, weights=weights, batch_first=True)


CROSS = {"cross": True, "kdim": 10, "vdim": 7}
SHAPES = [{}, {"cross": True}, CROSS, {"bias": False}]
ROWS = but_first([(True, CROSS, 3), (False, {"bias": False}, 2)], [False, True], SHAPES, [2, 3])


@pytest.mark.parametrize(("batch_first", "how", "ranks"), ROWS)
def test_any_shapes(how: dict[str, object], batch_first: bool, ranks: int) -> None:
    check(ranks, batch_first=batch_first, **how)


SINGLE = but_first([(True, "each")], [False, True], ["none", "bool", "each", "padding"])


@pytest.mark.parametrize(("batch_first", "mask"), SINGLE)
def test_single_sequences(batch_first: bool, mask: str) -> None:
    check(batched=False, batch_first=batch_first, mask=mask)


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ({}, 5),  # fewer heads
        ({"heads": 1}, 2),
        ({"add_zero_attn": True}, 2),  # keys and values besides those of its inputs
        ({"add_bias_kv": True}, 2),
        ({"weights": "each used"}, 2),  # weights of heads
        ({"mask": "apart"}, 2),  # masks that differ by head
    ],
)
def test_what_is_not_shared(options: dict[str, object], ranks: int) -> None:
    with pytest.raises(ModelError, match=r"ranks could share|give another function"):
        shares_of(objective_of("attending", **options), ranks)


@pytest.mark.parametrize(("batched", "ranks"), but_first([(True, 2)], [False, True], [2, 3]))
def test_each_rank_has_the_masks_of_its_own_heads(batched: bool, ranks: int) -> None:
    """Heads with masks of their own cannot change places, and so are not found; another network's shares fit."""
    plain, masked = (objective_of("attending", mask=mask, batched=batched) for mask in ("none", "apart"))
    assert is_sound(masked, examples_of(masked, 4).inputs, shares_of(plain, ranks))


def test_layers_of_the_transformer_are_shared_whole() -> None:
    shares = shares_of(objective_of("encoder"), 2)
    assert (shares.heads, shares.column) == (("layer.self_attn",), ("layer.linear1",))
    shares = shares_of(objective_of("decoder"), 2)
    assert shares.heads == ("layer.self_attn", "layer.multihead_attn")
    sizes = {spec.name: spec.shape for spec in shares.layout_of(0).params}
    assert sizes["layer.linear1.weight"] == (11, 12)
    assert sizes["layer.self_attn.in_proj_weight"] == (18, 12)
