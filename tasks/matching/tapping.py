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
        next(node for node in nodes.values() if node.op == "output").args = (tuple(nodes[n] for n in names),)
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
