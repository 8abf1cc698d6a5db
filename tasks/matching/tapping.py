"""Runs the graph of a network on examples and gives the values at some of its nodes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.tracing.trace import Inputs, changed_inputs, plain_attention
from roundweave.tasks.matching.unofficial import tensors_in

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
        if any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in every):
            # What is written in place later would change the values.
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
    """A copy of a node's value, made as soon as it is there; `first` is the first node that computes."""
    given = node.op in ("placeholder", "get_attr")
    with graph.inserting_before(first) if given else graph.inserting_after(node):
        return graph.call_function(torch.ops.aten.clone.default, (node,))


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
