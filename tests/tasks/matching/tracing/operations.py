"""Small networks, one for each operation: (parameters, forward, the sizes of the groups that are expected).

The first layers `a` and `b` have 8 units each over 6 inputs; parameters are given by their shapes. What is padded
with zeros, copied or selected away makes groups of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tests.tasks.matching.tracing.mixing import MIXED

Forward = Callable[[Any, Tensor], Any]
CASES: dict[str, tuple[dict[str, Any], Forward, list[int]]] = {}


def case(name: str, sizes: list[int], forward: Forward, **parts: Any) -> None:
    CASES[name] = (parts, forward, sorted(sizes))


class Network(nn.Module):
    def __init__(self, parts: dict[str, Any], forward: Forward):
        super().__init__()
        self.work = forward
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)
        for name, part in parts.items():
            setattr(self, name, part() if callable(part) else nn.Parameter(torch.randn(part)))

    def forward(self, x: Tensor) -> Any:
        return self.work(self, x)


def sequence(m: Any, x: Tensor) -> Tensor:
    return torch.stack([m.a(x), m.a(x + 1), m.a(x - 1)], dim=1)


def image(m: Any, x: Tensor) -> Tensor:
    return m.a(x)[:, :, None] * torch.arange(1.0, 6, dtype=x.dtype)


def row(m: Any) -> Tensor:
    return m.out.weight[0, :, None]


def heads(units: Tensor, count: int) -> Tensor:
    return units.view(1, 4, count, 2).transpose(1, 2)


def halved(w: Tensor) -> Tensor:
    """The sum of the two halves of each row."""
    return w.unflatten(1, (2, -1)).sum(1)


def mixed(name: str, operation: Callable[[Tensor], Tensor], *shape: int) -> None:
    """The last column of rows beside what becomes of them: one order of the rows fits all columns, or none."""
    case(f"mixed_by_{name}", [4], lambda m, x: operation(m.w).split(1, 1)[-1].sum() + 0 * x[0, 0], w=shape)


# Sums
case("einsum", [8, 8, 7], lambda m, x: torch.einsum("bi,ijk,bk->bj", m.a(x), m.w, m.b(x)).sum(1), w=(8, 7, 8))
case(
    "einsum_with_an_ellipsis",
    [8, 8],
    lambda m, x: torch.einsum("...i,ji->...j", m.a(x).relu(), m.w).relu().sum(1),
    w=(8, 8),
)
case("outer", [8, 8], lambda m, x: torch.outer(m.a(x)[0], m.b(x)[0]).sin().sum())
case("var_mean", [8], lambda m, x: torch.stack(torch.var_mean(m.a(x), dim=1)))
case("cosine_similarity", [8], lambda m, x: f.cosine_similarity(m.a(x), m.b(x), dim=1))
case("max_alone", [8], lambda m, x: m.a(x).max(dim=1).values)
case("max_with_its_index", [], lambda m, x: m.a(x).max(dim=1))
case("mixing_rows", [4], lambda m, x: (m.w.sin() @ (m.w @ m.p)).relu().sum(1) + 0 * x[0, 0], w=(8, 8), p=(8, 4))
case("attention_to_its_own_batch", [3, 6], lambda m, x: f.scaled_dot_product_attention(
    m.w, m.w.sum(1), m.w.sum(1)).sum((0, 2)) + 0 * x[0, 0], w=(3, 2, 6))  # fmt: skip
case("gqa", [2, 2, 2, 2], lambda m, x: f.scaled_dot_product_attention(
    heads(m.a(x), 4), heads(m.k(x), 2), heads(m.v(x), 2), enable_gqa=True).sum((1, 3)),
    k=lambda: nn.Linear(6, 4), v=lambda: nn.Linear(6, 4))  # fmt: skip

# Shapes
case("stack_then_unbind", [8, 8], lambda m, x: m.out(torch.stack([m.a(x), m.b(x)], 1).unbind(1)[0].relu()))
case("cat_then_view", [8, 8], lambda m, x: m.out(torch.cat([m.a(x), m.b(x)], 1).view(4, 2, 8)[:, 0].relu()))
case("cat_viewed_and_weighted", [8, 8], lambda m, x: (torch.cat([m.a(x), m.b(x)], 1).relu().view(4, 2, 8) * m.w)
     .sum(-1), w=(2, 8))  # fmt: skip
case("cat_viewed_as_heads", [2, 2, 4, 4], lambda m, x: (
    torch.cat([m.a(x), m.b(x)], 1).relu().view(4, 2, 2, 4) * m.w).sum((2, 3)), w=(2, 2, 4))  # fmt: skip
case("cat_viewed_unevenly", [2, 4, 8], lambda m, x: (
    torch.cat([m.a(x), m.out(m.b(x))[:, :4]], 1).view(4, 3, 4).relu() * m.w).sum((1, 2)), w=(4,))  # fmt: skip
case(
    "stack_and_itself", [8], lambda m, x: m.out((torch.stack([m.a(x), m.b(x)], 1) + m.a(x)[:, None]).sin().sum(1))
)
case("stack_of_stacks", [8, 8], lambda m, x: (torch.stack([torch.stack([m.a(x), m.b(x)], 1)] * 2, 1)
                                             * m.w).relu().sum(-1), w=(1, 2, 8))  # fmt: skip
case("selected_parameter", [8, 8], lambda m, x: (m.out(m.a(x) * m.w[0]), (m.b(x) * m.w[1]).sum()), w=(2, 8))
case("selected_along_two_axes", [8], lambda m, x: (
    m.out(m.a(x) * m.w[0][0]), (m.b(x)[:, None] * m.w[:, 1]).sum(-1)), w=(2, 2, 8))  # fmt: skip
case("selected_beside_a_broadcast", [8, 8], lambda m, x: (m.out(m.a(x) * (m.w * m.u)[0][1]),
                                                        (m.b(x) * (m.w * m.u)[1][0]).relu().sum(1)),
     w=(2, 3, 8), u=(2, 1, 8))  # fmt: skip
case("selected_in_vain", [8], lambda m, x: (m.a(x)[:, 2], m.out(m.a(x) * m.w))[1], w=(8,))
case("roll", [], lambda m, x: m.out(m.a(x).roll(1, 1)))
case("roll_of_the_batch", [8], lambda m, x: m.out(m.a(x).roll(1, 0)))
case("pad", [8, 2], lambda m, x: f.pad(m.a(x), (1, 2)) @ m.w, w=(11, 5))
case("movedim", [8], lambda m, x: image(m, x).movedim(1, -1) @ m.out.weight.T)
case("tile", [8], lambda m, x: m.a(x).relu().tile(1, 2).unflatten(1, (2, 8)) @ m.out.weight.T)
case("real_and_imaginary_parts", [8], lambda m, x: m.out(
    torch.view_as_real(torch.complex(m.a(x), m.b(x)).exp())[..., 0].relu()))  # fmt: skip
case("complex_of_parts", [4, 4, 4], lambda m, x: (torch.view_as_complex(
    torch.stack([m.a(x)[:, :4], m.b(x)[:, :4]], -1)).abs() * m.w).sum(1) + m.a(x)[:, 4:].sum(1),
     w=(4,))  # fmt: skip
case("repeat_interleave", [8, 2], lambda m, x: m.a(x).repeat_interleave(2, 1).relu() @ m.w, w=(16, 5))
case(
    "narrow",
    [2, 3, 3],
    lambda m, x: (m.a(x).narrow(1, 2, 3) @ m.w, m.a(x)[:, :2].sum(), m.a(x)[:, 5:].sum()),
    w=(3, 5),
)
case("slice_with_a_step", [2, 4, 4], lambda m, x: m.out(m.a(x)[:, ::2].repeat(1, 2)))
case("channel_shuffle", [4, 2], lambda m, x: f.conv1d(f.channel_shuffle(image(m, x), 2), m.w), w=(5, 8, 1))
case(
    "pixel_shuffle", [2], lambda m, x: f.conv2d(f.pixel_shuffle(m.a(x)[:, :, None, None], 2), m.w), w=(5, 2, 1, 1)
)
case("pixel_shuffle_of_units", [8], lambda m, x: f.pixel_shuffle(
    (m.a(x)[:, :, None] * m.b(x)[:, None])[:, None].expand(-1, 4, -1, -1), 2).sum((1, 2)))  # fmt: skip
case("unfold", [8], lambda m, x: f.unfold(image(m, x)[..., None], (3, 1)).transpose(1, 2) @ m.w, w=(24, 5))
case("no_units_left", [8, 8], lambda m, x: m.out(torch.cat([m.a(x), m.b(x)[:, :0]], 1)))

# Places along an axis are mixed
for name, operation in MIXED.items():
    mixed(name, lambda w, operation=operation: w * operation(w[None])[0], 4, 6)
mixed("topk", lambda w: w * w.topk(6, 1).values, 4, 6)
mixed("step", lambda w: w[:, ::2] * halved(w), 4, 6)
mixed("reflected_pad", lambda w: w * halved(f.pad(w, (3, 3), mode="reflect")), 4, 6)
mixed("complex", lambda w: w * torch.view_as_complex(w.unflatten(1, (3, 2))).abs().repeat_interleave(2, 1), 4, 6)
case("roll_and_split", [], lambda m, x: (m.w * m.w.roll(1, 1)).split(1, 1)[5] + 0 * x[0, 0], w=(4, 6))

# Looked up
case("indexed", [8], lambda m, x: m.a(x)[[0, 2, 1]] @ m.out.weight.T)
case("index_of_units", [8], lambda m, x: m.out(m.w[(m.a(x) > 0).long()]), w=(2,))
case("index_select", [8], lambda m, x: m.w.index_select(0, (m.a(x)[0] > 0).long()).sin().sum(0), w=(3, 4))
case("one_hot_of_units", [8], lambda m, x: m.out(f.one_hot((m.a(x) > 0).long(), 2)[..., 1].to(x.dtype)))
case("gather", [8], lambda m, x: m.out(m.a(x).gather(0, m.b(x).argsort(0))))
case("embedding_of_units", [8, 8, 7], lambda m, x: (f.embedding((m.a(x) > 0).long(), m.w).sin() * row(m))
     .sum((1, 2)), w=(2, 7))  # fmt: skip
case("grouped_mm", [8], lambda m, x: torch._grouped_mm(m.a(x).bfloat16(), m.w.bfloat16(), offs=torch.tensor(
    [1, 4], dtype=torch.int32)).relu().sum(1), w=(2, 8, 16))  # fmt: skip
for name, sizes, change in [
    ("largest_units", [8, 8, 8], torch.sigmoid),  # as a router chooses experts
    ("largest_units_that_are_cut_off", [8, 8], torch.relu),
    ("largest_units_that_are_masked", [8, 8], lambda v: v.masked_fill(v < 0, -1.0)),
]:
    case(name, sizes, lambda m, x, change=change: (m.w[change(m.a(x)).topk(3).indices] * row(m)[:, 0]).sum((1, 2)),
         w=(8, 8))  # fmt: skip
case("histogram", [8], lambda m, x: (m.a(x)[0].histc(4, -1, 1), m.b(x).sum(1)))

# Writing in place
case("index_put", [8], lambda m, x: m.out(_turned(m.a(x), m.b(x)).relu()))
case("copied_into_zeros", [8, 8, 8], lambda m, x: (_filled(m, x) * m.w).relu().sum(-1), w=(3, 8))
case("copied_and_summed", [8], lambda m, x: m.out(_filled(m, x).relu().sum(1)))
for name in ("abs_", "hardswish_"):
    case(f"{name}in_place", [8], lambda m, x, name=name: m.out(getattr(torch.ops.aten, name)(m.a(x) + m.b(x))))
case("in_place", [3, 5], lambda m, x: m.out(_scaled(m.a(x).add_(m.b(x)).relu_())))


def _filled(m: Any, x: Tensor) -> Tensor:
    found = x.new_zeros(x.shape[0], 3, 8)
    found[:, 0], found[:, 1] = m.a(x), m.b(x)
    return found


def _turned(units: Tensor, written: Tensor) -> Tensor:
    found = torch.zeros_like(units)
    found[torch.tensor([2, 0])] = written[:2]
    return found + units


def _scaled(units: Tensor) -> Tensor:
    units[:, 3:].mul_(2)
    return units


def _cast(units: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return units.sin()


# Layers
case("in_autocast", [8], lambda m, x: m.out(_cast(m.a(x))))
case("glu", [4], lambda m, x: f.glu(m.a(x), 1) @ m.w, w=(4, 5))
case("group_norm", [4, 2], lambda m, x: m.out(f.group_norm(m.a(x), 4)))
case("batch_norm_of_the_batch", [8], lambda m, x: m.out(f.batch_norm(m.a(x), None, None, training=True)))
case("convolution_over_time", [8, 7], lambda m, x: f.conv1d(image(m, x), m.w).relu().sum(1), w=(7, 8, 3))
case("convolution_of_one_place", [5, 8, 7], lambda m, x: f.conv1d(torch.einsum("bi,ki->bki", m.a(x), m.w).relu(),
     m.k, m.c).relu().sum(1) @ m.out.weight.T, w=(5, 8), k=(7, 5, 1), c=(7,))  # fmt: skip
case("convolution_of_one_place_with_a_step", [5, 7], lambda m, x: f.conv1d(torch.einsum(
    "bi,ki->bki", m.a(x), m.w).relu(), m.k, stride=2).relu().sum(1) @ m.v,
     w=(5, 8), k=(7, 5, 1), v=(4, 5))  # fmt: skip
case("grouped_transposed", [4, 2, 3], lambda m, x: f.conv_transpose1d(image(m, x), m.w, groups=4).relu().sum(1),
     w=(8, 3, 2))  # fmt: skip
case("weight_norm", [8, 7], lambda m, x: m.norm(m.a(x)).relu().sum(1),
     norm=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 7)))  # fmt: skip
case("spectral_norm", [8, 7], lambda m, x: m.norm(m.a(x)).relu().sum(1),
     norm=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 7)).eval())  # fmt: skip

# Recurrent
case("lstm_begins", [8, 7, 7], lambda m, x: m.cell(
    sequence(m, x), (m.h.repeat(1, 4, 1), m.c.repeat(1, 4, 1)))[0].sum(-1),
     cell=lambda: nn.LSTM(8, 7, 2, batch_first=True), h=(2, 1, 7), c=(2, 1, 7))  # fmt: skip
case("lstm_begins_with_a_written_state", [8, 7, 7], lambda m, x: m.cell(sequence(m, x), _begin(m))[0].sum(-1),
     cell=lambda: nn.LSTM(8, 7, 2, batch_first=True), h=(2, 1, 7))  # fmt: skip
case("lstm_over_units", [3], lambda m, x: m.cell(m.a(x)[..., None])[0][:, 0].sum(-1),
     cell=lambda: nn.LSTM(1, 3, batch_first=True))  # fmt: skip
case("lstm_cell", [8, 7], lambda m, x: m.cell(m.a(x))[0].sum(1), cell=lambda: nn.LSTMCell(8, 7))
case("gru_cell", [8, 7], lambda m, x: m.cell(m.a(x), m.cell(m.b(x))).sum(1), cell=lambda: nn.GRUCell(8, 7))


def _begin(m: Any) -> tuple[Tensor, Tensor]:
    first = m.h.new_zeros(2, 4, 7)
    second = torch.zeros_like(first)
    first[0].copy_(m.h[0].expand(4, 7))
    return first, second
