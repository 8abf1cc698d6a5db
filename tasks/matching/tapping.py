"""Runs the graph of a network on examples and gives the values at some of its nodes."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.tracing.trace import Inputs, changed_inputs, plain_attention
from roundweave.tasks.matching.unofficial import tensors_in

LAYER = re.compile(r"linear|conv|mm|matmul")
"""Matches operators that multiply by a layer's weight."""

BATCH = 100
"""The most examples that go through a network at once."""


@dataclass(frozen=True)
class Taps:
    """A network's exported program, made to give the values at the nodes of these names and to stop there."""

    program: torch.export.ExportedProgram
    names: tuple[str, ...]
    module: fx.GraphModule

    @classmethod
    def at(cls, program: torch.export.ExportedProgram, names: Sequence[str]) -> Taps:
        """The program with these nodes as outputs; the program itself is left as it is."""
        module = copy.deepcopy(program.graph_module)
        # A copied graph may give its nodes other names; their order is the same.
        pairs = zip(program.graph.nodes, module.graph.nodes, strict=True)
        nodes = {node.name: copied for node, copied in pairs}
        every = list(module.graph.nodes)
        first = next(node for node in every if node.op not in ("placeholder", "get_attr"))
        tapped = [nodes[name] for name in names]
        if any(_writes(node) for node in every):  # else what is written in place later would change the values
            tapped = [_copied(module.graph, node, first) for node in tapped]
        next(node for node in every if node.op == "output").args = (tuple(tapped),)
        module.graph.eliminate_dead_code()
        module.recompile()
        return cls(program, tuple(names), module)

    def values(self, state: Tensors, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values at the nodes, by name, of a network with these named tensors on a batch (examples, …)."""
        given = iter(batch)
        tensors = {**self.program.state_dict, **self.program.constants, **state}
        targets = [each.target for each in self.program.graph_signature.input_specs]
        with torch.no_grad(), plain_attention():
            return dict(
                zip(self.names, self.module(*(tensors[n] if n else next(given) for n in targets)), strict=True)
            )


def _copied(graph: fx.Graph, node: fx.Node, first: fx.Node) -> fx.Node:
    """A copy of a node's value as a layer reads it, or else another node, or as it was made.

    Until then it may be written in place, as an empty tensor that is filled. `first` is the first that computes.
    """
    readers = [user for user in node.users if not (_writes(user) or _is_view(user))]
    layers = [reader for reader in readers if LAYER.search(str(reader.target))]
    given = node.op in ("placeholder", "get_attr")
    reader = next(iter(layers or readers), first if given else None)
    if reader is None or reader.op == "output":
        place = graph.inserting_before(first) if given else graph.inserting_after(node)
    else:
        place = graph.inserting_before(reader)
    with place:
        return graph.call_function(torch.ops.aten.clone.default, (node,))


def _writes(node: fx.Node) -> bool:
    """Whether a node writes into a tensor that was there before."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _is_view(node: fx.Node) -> bool:
    """Whether a node's value shares memory with a tensor that was there before."""
    returned = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(each.alias_info is not None for each in returned)


def batch_size(inputs: Inputs) -> int:
    """How many of the inputs (examples, …) go through a network at once: at most `BATCH`, so that few are left."""
    examples = len(tensors_in(inputs)[0])
    return examples // max(1, math.ceil(examples / BATCH))


def first_batch(inputs: Inputs, size: int) -> Inputs:
    """The first `size` of the inputs (examples, …); raises `UsageError` if there are fewer."""
    examples = len(tensors_in(inputs)[0])
    if examples < size:
        raise UsageError(f"{examples} examples are too few to compare activations in batches of {size}")
    return changed_inputs(inputs, lambda tensor: tensor[:size])


def whole_batches(inputs: Inputs, size: int) -> Iterator[list[torch.Tensor]]:
    """The inputs (examples, …) in batches of `size`; examples left over at the end are not used."""
    tensors = tensors_in(inputs)
    for first in range(0, len(tensors[0]) - size + 1, size):
        yield [tensor[first : first + size] for tensor in tensors]
