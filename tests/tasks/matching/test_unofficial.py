"""What is used of torch without being documented is there, and named where it is not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from roundweave.tasks.matching.unofficial import (
    Deferred,
    OpOverload,
    TorchDispatchMode,
    arguments,
    is_view,
    operation_name,
    taken_apart,
    writes,
)

GONE = "torch has it no more, or otherwise: mend tasks/matching/unofficial.py"


class Works(nn.Module):
    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.forward = work


class _Seen(TorchDispatchMode):
    """Notes the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert isinstance(func, OpOverload), GONE
        self.names.append(operation_name(func))
        return func(*args, **(kwargs or {}))


def test_an_operation_tells_its_name_what_it_takes_and_whether_it_writes_or_is_a_view() -> None:
    with _Seen() as seen:
        torch.zeros(2).relu_().add(1)
    assert seen.names == ["aten::zeros", "aten::relu_", "aten::add"], GONE
    aten = torch.ops.aten
    add, relu = aten.add.Tensor, aten.relu_.default
    assert (writes(add), writes(relu)) == (False, True), GONE
    assert arguments(add, 2, other=3) == {"self": 2, "other": 3, "alpha": 1}, GONE
    assert all(map(is_view, (aten.slice.Tensor, aten.t.default, aten.split.Tensor))), GONE
    assert not any(map(is_view, (add, relu))), GONE


def test_an_operation_is_taken_apart_into_simpler_ones() -> None:
    def parts(work: Callable[[torch.Tensor], torch.Tensor]) -> list[str] | None:
        graph = torch.export.export(Works(work), (torch.ones(2, 4),)).graph
        found = taken_apart(next(node for node in graph.nodes if node.op == "call_function"))
        return found and [operation_name(n.target) for n in found[0].nodes if n.op == "call_function"]

    assert parts(functional.glu) == ["aten::slice", "aten::slice", "aten::sigmoid", "aten::mul"], GONE
    assert parts(lambda x: x.histc(4)) is None, GONE
    assert parts(lambda x: x.add_(1)) is None, GONE


def test_a_deferred_tensor_is_computed_for_each_operation_and_keeps_what_is_written() -> None:
    computed = []
    make = [lambda: computed.append(1) or torch.tensor([1.0, 2.0]).double()]
    parameter = nn.Parameter(Deferred(torch.Size([2]), torch.float64, make), requires_grad=False)
    assert type(parameter) is Deferred and isinstance(parameter, nn.Parameter), GONE
    assert (parameter.shape, parameter.dtype, len(computed)) == ((2,), torch.float64, 0), GONE
    assert ((parameter + 1).tolist(), parameter.data.sum().item(), len(computed)) == ([2, 3], 3, 2), GONE
    parameter.detach().mul_(2)
    assert (parameter.add(0).tolist(), len(computed)) == ([2, 4], 3), GONE
