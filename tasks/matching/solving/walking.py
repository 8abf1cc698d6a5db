"""Runs a network's graph on a batch from layer to layer, so that each may be solved before the next is reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import fx

from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.solving.layers import Layer


class Walk(fx.Interpreter):
    """A run of an exported network with these named tensors on a batch (examples, …), which layers stop.

    Only values that are still to be read are kept. Tensors that are replaced in `state` on the way are read anew.
    """

    def __init__(
        self, program: torch.export.ExportedProgram, batch: Sequence[torch.Tensor], state: Tensors
    ) -> None:
        super().__init__(program.graph_module)
        self.program, self.state = program, state
        self.waiting, given = deque(program.graph.nodes), iter(batch)
        targets = [each.target for each in program.graph_signature.input_specs]
        places = [self.waiting.popleft() for _ in targets]
        self.named = {node: name for node, name in zip(places, targets, strict=True) if name}
        self.env = {node: next(given) for node in places if node not in self.named}

    def inputs(self, layer: Layer) -> torch.Tensor:
        """Return the values (examples, …) at the inputs of a layer.

        Layers are asked for in the order of the graph.
        """
        tensors = {**self.program.state_dict, **self.program.constants, **self.state}
        self.env |= {node: tensors[name] for node, name in self.named.items()}
        while all(self.named.get(each) != layer.weight for each in self.waiting[0].all_input_nodes):
            node = self.waiting.popleft()
            self.env[node] = self.run_node(node)
            for last in self.user_to_last_uses.get(node, ()):
                del self.env[last]
        values: torch.Tensor = next(
            self.env[each] for each in self.waiting[0].all_input_nodes if each.name == layer.inputs
        )
        return values
