"""Networks that hold layers or views of parameters in plain attributes, beside registration or instead of it."""

from __future__ import annotations

import itertools
import weakref
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn


class Two(nn.Module):
    """Two layers, and one between them that subclasses reach in their own way."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(*s, dtype=torch.float64) for s in ((8, 6), (6, 6), (6, 3)))
        self.hold()

    def hold(self):
        """Keep what `between` uses."""

    def between(self, hidden):
        return self.middle(hidden)

    def forward(self, x):
        return self.last(torch.relu(self.between(torch.relu(self.first(x)))))


def dict_beside() -> nn.Module:
    """Layers in a plain dict beside registration."""

    class Net(Two):
        def hold(self):
            self.by_name = {"middle": self.middle}

        def between(self, hidden):
            return self.by_name["middle"](hidden)

    return Net()


def list_beside() -> nn.Module:
    """Layers in a plain list beside registration."""

    class Net(Two):
        def hold(self):
            self.layers = [self.middle, torch.relu, self.middle]

        def between(self, hidden):
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    return Net()


def tuple_beside() -> nn.Module:
    """Pairs of a name and a layer in a tuple beside registration."""

    class Net(Two):
        def hold(self):
            self.layers = (("middle", self.middle),)

        def between(self, hidden):
            return self.layers[0][1](hidden)

    return Net()


@dataclass
class Part:
    layer: nn.Module
    factor: float = 2.0


class Slotted:
    __slots__ = ("layer",)

    def __init__(self, layer):
        self.layer = layer


Pair = namedtuple("Pair", ["layer", "factor"])


class Held(Two):
    """`held.layer` is the layer between."""

    def between(self, hidden):
        return self.held.layer(hidden)


def in_a_dataclass() -> nn.Module:
    """A layer in a dataclass."""

    class Net(Held):
        def hold(self):
            self.held = Part(self.middle)

    return Net()


def in_a_namedtuple() -> nn.Module:
    """A layer in a namedtuple."""

    class Net(Held):
        def hold(self):
            self.held = Pair(self.middle, 2.0)

    return Net()


def in_a_namespace() -> nn.Module:
    """A layer in a SimpleNamespace."""

    class Net(Held):
        def hold(self):
            self.held = SimpleNamespace(layer=self.middle)

    return Net()


def in_slots() -> nn.Module:
    """A layer in an object with __slots__."""

    class Net(Held):
        def hold(self):
            self.held = Slotted(self.middle)

    return Net()


def by_weakref() -> nn.Module:
    """A weak reference to a layer, so that it is not registered twice."""

    class Net(Two):
        def hold(self):
            self.reference = weakref.ref(self.middle)

        def between(self, hidden):
            return self.reference()(hidden)

    return Net()


def by_weak_proxy() -> nn.Module:
    """A weak proxy of a layer."""

    class Net(Two):
        def hold(self):
            self.__dict__["proxy"] = weakref.proxy(self.middle)

        def between(self, hidden):
            return self.proxy.forward(hidden)

    return Net()


def by_parent() -> nn.Module:
    """A part that holds the network that it belongs to, in a list, and uses its layer."""

    class Child(nn.Module):
        def __init__(self, parent):
            super().__init__()
            self.parent = [parent]

        def forward(self, hidden):
            return self.parent[0].middle(hidden)

    class Net(Two):
        def hold(self):
            self.child = Child(self)

        def between(self, hidden):
            return self.child(hidden)

    return Net()


def generator_over_layers() -> nn.Module:
    """A method that yields layers."""

    class Net(Two):
        def in_order(self):
            yield self.middle
            yield torch.tanh

        def between(self, hidden):
            for layer in self.in_order():
                hidden = layer(hidden)
            return hidden

    return Net()


def stored_generator() -> nn.Module:
    """A generator over layers, endless, that the network holds."""

    class Net(Two):
        def hold(self):
            self.endless = (self.middle for _ in itertools.count())

        def between(self, hidden):
            return next(self.endless)(hidden)

    return Net()


def stored_iterator() -> nn.Module:
    """itertools.cycle over one layer."""

    class Net(Two):
        def hold(self):
            self.endless = itertools.cycle([self.middle])

        def between(self, hidden):
            return next(self.endless)(hidden)

    return Net()


def parameter_lists() -> nn.Module:
    """A ParameterList and a ParameterDict."""

    class Net(Two):
        def hold(self):
            self.gains = nn.ParameterList([torch.linspace(0.5, 1.5, 6) for _ in range(2)])
            self.shifts = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(6))})

        def between(self, hidden):
            for gain in self.gains:
                hidden = torch.tanh(hidden * gain + self.shifts["shift"])
            return self.middle(hidden)

    return Net()


def unregistered_layer() -> nn.Module:
    """A layer in a list only, so that no optimizer trains it."""

    class Net(Two):
        def hold(self):
            self.hidden = [nn.Linear(6, 6, dtype=torch.float64)]

        def between(self, hidden):
            return self.middle(torch.relu(self.hidden[0](hidden)))

    return Net()


def unregistered_tensor() -> nn.Module:
    """A plain tensor that requires a gradient, which no optimizer trains."""

    class Net(Two):
        def hold(self):
            self.gain = torch.linspace(0.5, 1.5, 6, dtype=torch.float64, requires_grad=True)

        def between(self, hidden):
            return self.middle(hidden * self.gain)

    return Net()


def detached_view() -> nn.Module:
    """A detached view of a parameter, which follows it as it is trained."""

    class Net(Two):
        def hold(self):
            self.view = self.middle.weight.detach()

        def between(self, hidden):
            return self.middle(hidden) + hidden @ self.view

    return Net()


def view_of_numpy() -> nn.Module:
    """A parameter as an array of numpy that shares its memory."""

    class Net(Two):
        def hold(self):
            self.array = self.middle.weight.detach().numpy()

        def between(self, hidden):
            return self.middle(hidden) + hidden @ torch.from_numpy(self.array)

    return Net()


def alias_by_data() -> nn.Module:
    """The .data of a parameter."""

    class Net(Two):
        def hold(self):
            self.alias = self.middle.weight.data

        def between(self, hidden):
            return self.middle(hidden) * self.alias.norm()

    return Net()


def slices_of_a_parameter() -> nn.Module:
    """Parts of one parameter, cut when the network is made."""

    class Net(Two):
        def hold(self):
            self.both = nn.Parameter(torch.randn(6, 12, dtype=torch.float64) / 4)
            self.left, self.right = self.both[:, :6], self.both[:, 6:]

        def between(self, hidden):
            return self.middle(hidden @ self.left + torch.tanh(hidden @ self.right))

    return Net()


def parameter_of_data() -> nn.Module:
    """Two parameters over one memory, so that a step of each moves both."""

    class Net(Two):
        def hold(self):
            self.again = nn.Parameter(self.middle.weight.data)

        def between(self, hidden):
            return self.middle(hidden) + hidden @ self.again

    return Net()
