"""Networks that hold layers or views of parameters in plain attributes, beside registration or instead of it."""

from __future__ import annotations

import itertools
import weakref
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn


class Three(nn.Module):
    """Three layers; what is done between the first and the last is each network's own."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(*s, dtype=torch.float64) for s in ((8, 6), (6, 6), (6, 3)))

    def forward(self, x):
        return self.last(torch.relu(self.between(torch.relu(self.first(x)))))


def holding(between, **held):
    """A network that does this between its layers, and holds what is made of it."""
    network = type("Net", (Three,), {"between": between})()
    for name, make in held.items():
        setattr(network, name, make(network))
    return network


def one_by_one(layers, hidden):
    """What layers give, one after the other."""
    for layer in layers:
        hidden = layer(hidden)
    return hidden


def dict_beside() -> nn.Module:
    """Layers in a plain dict beside registration."""
    return holding(lambda self, h: self.by_name["middle"](h), by_name=lambda net: {"middle": net.middle})


def list_beside() -> nn.Module:
    """Layers in a plain list beside registration."""
    return holding(
        lambda self, h: one_by_one(self.layers, h), layers=lambda net: [net.middle, torch.relu, net.middle]
    )


def tuple_beside() -> nn.Module:
    """Pairs of a name and a layer in a tuple beside registration."""
    return holding(lambda self, h: self.layers[0][1](h), layers=lambda net: (("middle", net.middle),))


@dataclass
class Part:
    layer: nn.Module
    factor: float = 2.0


@dataclass(slots=True)
class Slotted:
    layer: nn.Module


Pair = namedtuple("Pair", ["layer", "factor"])


def holding_layer(make):
    """A network that reaches its layer between through an object, as `held.layer`."""
    return holding(lambda self, h: self.held.layer(h), held=make)


def in_a_dataclass() -> nn.Module:
    """A layer in a dataclass."""
    return holding_layer(lambda net: Part(net.middle))


def in_a_namedtuple() -> nn.Module:
    """A layer in a namedtuple."""
    return holding_layer(lambda net: Pair(net.middle, 2.0))


def in_a_namespace() -> nn.Module:
    """A layer in a SimpleNamespace."""
    return holding_layer(lambda net: SimpleNamespace(layer=net.middle))


def in_slots() -> nn.Module:
    """A layer in an object with __slots__."""
    return holding_layer(lambda net: Slotted(net.middle))


def by_weakref() -> nn.Module:
    """A weak reference to a layer, so that it is not registered twice."""
    return holding(lambda self, h: self.reference()(h), reference=lambda net: weakref.ref(net.middle))


def by_weak_proxy() -> nn.Module:
    """A weak proxy of a layer, in a list, since torch would register it."""
    return holding(lambda self, h: self.proxies[0].forward(h), proxies=lambda net: [weakref.proxy(net.middle)])


def by_weak_proxy_beside() -> nn.Module:
    """A weak proxy of a layer as an attribute, past torch's registration."""
    network = holding(lambda self, h: self.proxy.forward(h))
    network.__dict__["proxy"] = weakref.proxy(network.middle)
    return network


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = [parent]

    def forward(self, hidden):
        return self.parent[0].middle(hidden)


def by_parent() -> nn.Module:
    """A part that holds the network that it belongs to, in a list, and uses its layer."""
    return holding(lambda self, h: self.child(h), child=Child)


class Yielding(Three):
    def in_order(self):
        yield self.middle
        yield torch.tanh

    def between(self, hidden):
        return one_by_one(self.in_order(), hidden)


def generator_over_layers() -> nn.Module:
    """A method that yields layers."""
    return Yielding()


def stored_generator() -> nn.Module:
    """A generator over layers, endless, that the network holds."""
    return holding(
        lambda self, h: next(self.endless)(h), endless=lambda net: (net.middle for _ in itertools.count())
    )


def stored_iterator() -> nn.Module:
    """itertools.cycle over one layer."""
    return holding(lambda self, h: next(self.endless)(h), endless=lambda net: itertools.cycle([net.middle]))


def parameter_lists() -> nn.Module:
    """A ParameterList and a ParameterDict."""

    def between(self, hidden):
        for gain in self.gains:
            hidden = torch.tanh(hidden * gain + self.shifts["shift"])
        return self.middle(hidden)

    gains, shifts = [torch.linspace(0.5, 1.5, 6) for _ in range(2)], {"shift": nn.Parameter(torch.zeros(6))}
    return holding(between, gains=lambda net: nn.ParameterList(gains), shifts=lambda net: nn.ParameterDict(shifts))


def unregistered_layer() -> nn.Module:
    """A layer in a list only, so that no optimizer trains it."""

    def between(self, hidden):
        return self.middle(torch.relu(self.hidden[0](hidden)))

    return holding(between, hidden=lambda net: [nn.Linear(6, 6, dtype=torch.float64)])


def unregistered_tensor() -> nn.Module:
    """A plain tensor that requires a gradient, which no optimizer trains."""
    gain = torch.linspace(0.5, 1.5, 6, dtype=torch.float64, requires_grad=True)
    return holding(lambda self, h: self.middle(h * self.gain), gain=lambda net: gain)


def detached_view() -> nn.Module:
    """A detached view of a parameter, which follows it as it is trained."""
    return holding(lambda self, h: self.middle(h) + h @ self.view, view=lambda net: net.middle.weight.detach())


def view_of_numpy() -> nn.Module:
    """A parameter as an array of numpy that shares its memory."""

    def between(self, hidden):
        return self.middle(hidden) + hidden @ torch.from_numpy(self.array)

    return holding(between, array=lambda net: net.middle.weight.detach().numpy())


def alias_by_data() -> nn.Module:
    """The .data of a parameter."""
    return holding(lambda self, h: self.middle(h) * self.alias.norm(), alias=lambda net: net.middle.weight.data)


def slices_of_a_parameter() -> nn.Module:
    """Parts of one parameter, cut when the network is made."""

    def between(self, hidden):
        return self.middle(hidden @ self.left + torch.tanh(hidden @ self.right))

    both = nn.Parameter(torch.randn(6, 12, dtype=torch.float64) / 4)
    return holding(between, both=lambda net: both, left=lambda net: both[:, :6], right=lambda net: net.both[:, 6:])


def parameter_of_data() -> nn.Module:
    """Two parameters over one memory, so that a step of each moves both."""

    def between(self, hidden):
        return self.middle(hidden) + hidden @ self.again

    return holding(between, again=lambda net: nn.Parameter(net.middle.weight.data))
