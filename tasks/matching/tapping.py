"""Runs the graph of a network on examples and gives the values at some of its nodes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.tracing.exporting import Inputs, changed_inputs, plain_attention
from roundweave.tasks.matching.unofficial import tensors_in

GIVEN = ("placeholder", "get_attr")
"""The kinds of nodes that compute nothing, and stand before all others."""

BATCH = 100
"""The most examples that go through a network at once."""


@dataclass(frozen=True)
class Taps:
    """A network's exported program, made to give the values at some nodes by these names, and to stop there."""

    program: torch.export.ExportedProgram
    names: tuple[str, ...]
    module: fx.GraphModule

    @classmethod
    def at(cls, program: torch.export.ExportedProgram, names: Sequence[str]) -> Taps:
        """Return the program with the nodes of these names as outputs."""
        return cls.read(program, {name: (name, None) for name in names})

    @classmethod
    def read(cls, program: torch.export.ExportedProgram, places: Mapping[str, tuple[str, str | None]]) -> Taps:
        """The program with nodes as outputs, by any names, each as another node reads it, or the first that does.

        The program itself is left as it is.
        """
        module = copy.deepcopy(program.graph_module)
        # A copied graph may give its nodes other names; their order is the same.
        pairs = zip(program.graph.nodes, module.graph.nodes, strict=True)
        nodes = {node.name: copied for node, copied in pairs}
        tapped = [(nodes[name], nodes[reader] if reader else None) for name, reader in places.values()]
        outputs = [node for node, _ in tapped]
        if any(_writes(node) for node in nodes.values()):  # what is written in place later would change the values
            outputs = [_copied(module.graph, node, reader) for node, reader in tapped]
        next(node for node in nodes.values() if node.op == "output").args = (tuple(outputs),)
        module.graph.eliminate_dead_code()
        module.recompile()
        return cls(program, tuple(places), module)

    def values(self, state: Tensors, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values at the nodes, by name, of a network with these named tensors on a batch (examples, …)."""
        given = iter(batch)
        tensors = {**self.program.state_dict, **self.program.constants, **state}
        targets = [each.target for each in self.program.graph_signature.input_specs]
        with torch.no_grad(), plain_attention():
            return dict(
                zip(self.names, self.module(*(tensors[n] if n else next(given) for n in targets)), strict=True)
            )


def _copied(graph: fx.Graph, node: fx.Node, reader: fx.Node | None) -> fx.Node:
    """A copy of a node's value as it is read, by this reader or the first one, or as it was made if there is none.

    Until then it may be written in place, as an empty tensor that is filled.
    """
    readers = (user for user in node.users if not (_writes(user) or _is_view(user) or user.op == "output"))
    before = reader or next(readers, None)
    if before is None and node.op in GIVEN:
        before = next(each for each in graph.nodes if each.op not in GIVEN)
    with graph.inserting_before(before) if before else graph.inserting_after(node):
        return graph.call_function(torch.ops.aten.clone.default, (node,))


def _writes(node: fx.Node) -> bool:
    """Tell whether a node writes into a tensor that was there before."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _is_view(node: fx.Node) -> bool:
    """Tell whether a node's value shares memory with a tensor that was there before."""
    returned = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(each.alias_info is not None for each in returned)


def batch_size(inputs: Inputs) -> int:
    """How many of the inputs (examples, …) go through a network at once: at most `BATCH`, so that few are left."""
    examples = len(tensors_in(inputs)[0])
    return examples // max(1, math.ceil(examples / BATCH))


def first_batch(inputs: Inputs, size: int) -> Inputs:
    """Return the first `size` of the inputs (examples, …). Raises `UsageError` if there are fewer."""
    examples = len(tensors_in(inputs)[0])
    if examples < size:
        raise UsageError(f"{examples} examples are too few to compare activations in batches of {size}")
    return changed_inputs(inputs, lambda tensor: tensor[:size])


def whole_batches(inputs: Inputs, size: int) -> Iterator[list[torch.Tensor]]:
    """Yield the inputs (examples, …) in batches of `size`; examples left over at the end are not used."""
    tensors = tensors_in(inputs)
    for first in range(0, len(tensors[0]) - size + 1, size):
        yield [tensor[first : first + size] for tensor in tensors]
