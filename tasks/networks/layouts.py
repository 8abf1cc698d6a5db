"""The layouts of networks."""

from __future__ import annotations

from torch import nn

from storage.values.layout import Layout
from storage.values.tensors import specs_of


def layout_of(network: nn.Module) -> Layout:
    """The place of each of a network's tensors in its vectors; non-persistent buffers are not stored."""
    parameters = dict(network.named_parameters())
    persistent = network.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in persistent}
    first = {id(tensor): name for name, tensor in [*parameters.items(), *buffers.items()]}
    every = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    return Layout(
        params=specs_of((n, p) for n, p in parameters.items() if p.requires_grad),
        frozen=specs_of((n, p) for n, p in parameters.items() if not p.requires_grad),
        buffers=specs_of(buffers.items()),
        aliases=tuple((n, first[id(t)]) for n, t in every if first.get(id(t), n) != n),
    )
