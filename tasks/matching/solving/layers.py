"""Finds the linear and convolutional layers of a network, and writes each as a product of matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.unofficial import OpOverload, arguments, operation_name

MOST_NUMBERS = 1 << 24
"""The most numbers of a layer's inputs that are written as rows at once."""


@dataclass(frozen=True)
class Window:
    """The window of a convolution: its size, steps, padding before and after, and spacing in each dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def seen(self, values: torch.Tensor, groups: int) -> torch.Tensor:
        """Return what stands in the window at each place, (group, example and place, in of the group and window).

        The values are (example, in, *space); the im2col of Chellapilla, Puri and Simard 2006.
        """
        space = len(self.size)
        values = functional.pad(values, [pad for pair in reversed(self.padding) for pad in pair])
        for dim, (size, step, apart) in enumerate(zip(self.size, self.stride, self.dilation, strict=True), 2):
            values = values.unfold(dim, apart * (size - 1) + 1, step)[..., ::apart]
        grouped = values.unflatten(1, (groups, -1))  # (example, group, in, *places, *window)
        places, window = range(3, 3 + space), range(3 + space, 3 + 2 * space)
        seen: torch.Tensor = grouped.permute(1, 0, *places, 2, *window).flatten(2 + space).flatten(1, 1 + space)
        return seen


@dataclass(frozen=True)
class Layer:
    """A layer of a network: at the node `inputs` of its graph stands what its weight is multiplied by at `node`.

    A weight is (out, in), or (in, out) if `transposed`; that of a convolution is (out, in / groups, *window).
    """

    inputs: str
    weight: str
    bias: str | None = None
    transposed: bool = False
    window: Window | None = None
    groups: int = 1
    node: str = ""

    def matrix(self, state: Tensors) -> torch.Tensor:
        """The weight, and the bias as its last column, as a float64 matrix for each group: (group, out, in)."""
        weight = state[self.weight].double()
        matrix = weight.T if self.transposed else weight.flatten(1)
        rows = matrix.reshape(self.groups, -1, matrix.shape[1])
        if self.bias is None:
            return rows
        return torch.cat([rows, state[self.bias].double().reshape(self.groups, -1, 1)], 2)

    def tensors(self, matrix: torch.Tensor, like: Tensors) -> dict[str, torch.Tensor]:
        """Return the weight and the bias of a `matrix`, with the shapes and types of named tensors."""
        weight = like[self.weight]
        rows = (matrix if self.bias is None else matrix[..., :-1]).flatten(0, 1)
        made = {self.weight: (rows.T.contiguous() if self.transposed else rows).reshape(weight.shape)}
        if self.bias is not None:
            made[self.bias] = matrix[..., -1].flatten()
        return {name: tensor.to(like[name].dtype) for name, tensor in made.items()}

    def rows(self, values: torch.Tensor) -> Iterator[torch.Tensor]:
        """The values at the layer's inputs as float64 (group, sample, in), with a last column of ones for a bias.

        They come in parts if they are many, since a convolution reads each value several times.
        """
        copies = 1
        for size in self.window.size if self.window else ():
            copies *= size
        values = values if self.window else values.flatten(0, -2)
        for part in values.split(max(1, MOST_NUMBERS // max(1, values[0].numel() * copies))):
            rows = part.double()
            rows = self.window.seen(rows, self.groups) if self.window else rows[None]
            yield rows if self.bias is None else functional.pad(rows, (0, 1), value=1.0)


def find_layers(program: torch.export.ExportedProgram) -> dict[str, Layer]:
    """The layers of an exported network by the name of their weight, in the order in which they are computed.

    A weight that is used in several places, or in another way, such as one that is tied to an embedding, has none.
    """
    named: Mapping[str, str] = program.graph_signature.inputs_to_parameters
    uses = Counter(node.name for user in program.graph.nodes for node in user.all_input_nodes)
    layers: dict[str, Layer] = {}
    for node in program.graph.nodes:
        if isinstance(node.target, OpOverload) and (layer := _layer(node, node.target, named)):
            layers[layer.weight] = replace(layer, node=node.name)
    single = {target for name, target in named.items() if uses[name] == 1}
    return {name: each for name, each in layers.items() if {name, each.bias or name} <= single}


def _layer(node: fx.Node, operation: OpOverload, named: Mapping[str, str]) -> Layer | None:
    """Return the layer that a node computes; None for another operation, or a weight that is no parameter."""
    given = arguments(operation, *node.args, **node.kwargs)
    kind = operation_name(operation).removeprefix("aten::")
    if kind == "linear":
        return _made(named, given["input"], given["weight"], given["bias"])
    if kind == "addmm" and given["beta"] == given["alpha"] == 1:
        return _made(named, given["mat1"], given["mat2"], given["self"], transposed=True)
    if kind in ("mm", "matmul"):
        return _made(named, given["self"], given.get("mat2", given.get("other")), None, transposed=True)
    if kind in ("conv1d", "conv2d", "conv3d"):
        window = _window(given)
        return _made(named, given["input"], given["weight"], given["bias"], window=window, groups=given["groups"])
    return None


def _made(named: Mapping[str, str], inputs: fx.Node, weight: Any, bias: Any, **form: Any) -> Layer | None:
    """Return the layer of these nodes, if its weight is a parameter, and its bias one or none."""
    if not isinstance(weight, fx.Node) or weight.name not in named or inputs.name in named:
        return None
    tensor, values = weight.meta["val"], inputs.meta["val"]
    batched = values.ndim >= 2 if tensor.ndim == 2 else "window" in form and values.ndim == tensor.ndim
    outputs = tensor.shape[1 if form.get("transposed") else 0]
    known = bias is None or (bias.name in named and bias.meta["val"].shape == (outputs,))
    if not (batched and known and tensor.dtype.is_floating_point):
        return None
    return Layer(inputs.name, named[weight.name], None if bias is None else named[bias.name], **form)


def _window(given: Mapping[str, Any]) -> Window:
    size = tuple(given["weight"].meta["val"].shape[2:])
    stride, dilation = (_each(given[name], len(size)) for name in ("stride", "dilation"))
    if given["padding"] == "same":
        total = [apart * (each - 1) for each, apart in zip(size, dilation, strict=True)]
        return Window(size, stride, tuple((each // 2, each - each // 2) for each in total), dilation)
    padding = _each(0 if given["padding"] == "valid" else given["padding"], len(size))
    return Window(size, stride, tuple((pad, pad) for pad in padding), dilation)


def _each(given: Any, dimensions: int) -> tuple[int, ...]:
    """Return a number for each dimension, of one for all or one for each."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    return numbers * dimensions if len(numbers) == 1 else numbers
