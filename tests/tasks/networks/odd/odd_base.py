"""Two layers, of which the networks beside this file are made."""

from __future__ import annotations

import torch
from torch import nn


class Two(nn.Module):
    """Two layers, and an activation between them that some replace."""

    act = staticmethod(torch.relu)

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def layers(self, x):
        return self.last(self.act(self.first(x)))

    def forward(self, x):
        return self.layers(x)


def made(forward=Two.layers, buffers=(), **attributes):
    """A network of a class of its own, with this forward, these attributes and these persistent buffers."""
    network = type("Net", (Two,), {"forward": forward})()
    for name, value in attributes.items():
        setattr(network, name, value)
    for name, tensor in dict(buffers).items():
        network.register_buffer(name, tensor)
    return network


def with_middle(act):
    """A network with one more layer, and an activation that is made of the network."""
    network = Two()
    network.middle = nn.Linear(6, 6)
    network.act = act(network)
    return network
