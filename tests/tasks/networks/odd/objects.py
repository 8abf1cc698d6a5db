"""Networks that use Python in ways of their own: properties, overridden methods, globals, caches, classes."""

from __future__ import annotations

import contextlib
import copy
import functools

import torch
from odd_base import Two, made
from torch import nn


class Scaled(Two):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(0.3))

    @property
    def scale(self):
        return self.raw.exp()

    def forward(self, x):
        return self.layers(x) * self.scale


def property_of_parameter() -> nn.Module:
    """A property that computes a positive scale from a parameter."""
    return Scaled()


class Listed(Two):
    @functools.cached_property
    def parts(self):
        return [self.first, torch.relu, self.last]

    def forward(self, x):
        for layer in self.parts:
            x = layer(x)
        return x


def cached_property_of_layers() -> nn.Module:
    """functools.cached_property that lists the layers."""
    return Listed()


def cached_property_read_early() -> nn.Module:
    """The same, read before the network is returned."""
    network = Listed()
    assert len(network.parts) == 3
    return network


class Called(Two):
    forward = nn.Module.forward

    def __call__(self, x):
        return self.layers(x)


def call_overridden() -> nn.Module:
    """__call__ overridden, without a forward."""
    return Called()


class Doubled(Two):
    def __call__(self, x):
        return super().__call__(x) * 2


def call_around_forward() -> nn.Module:
    """__call__ that scales what forward gives."""
    return Doubled()


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def getattr_overridden() -> nn.Module:
    """A wrapper whose __getattr__ asks the wrapped network for what it lacks."""
    return Wrapper(Two())


class PartlyTrained(Two):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.layers(self.norm(x))


def train_overridden() -> nn.Module:
    """train overridden so that a frozen part stays in evaluation mode, as detection networks do."""
    return PartlyTrained()


class Uncopied(Two):
    def __deepcopy__(self, memo):
        return self


def deepcopy_overridden() -> nn.Module:
    """__deepcopy__ that gives the network itself, so that one configuration is shared."""
    return Uncopied()


def mixins() -> nn.Module:
    """Several base classes, with super() along them."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def layers(self, x):
            return super().layers(self.norm(x))

    class Net(Normed, Two):
        pass

    return Net()


def class_attribute() -> nn.Module:
    """A layer as an attribute of the class, which is not registered."""
    network = made(lambda self, x: self.last(torch.relu(self.middle(self.first(x)))))
    type(network).middle = nn.Linear(6, 6, dtype=torch.float64)
    return network


def registered_class_attribute() -> nn.Module:
    """A parameter that is kept by the class, too, and read from there."""
    network = made(lambda self, x: self.last(torch.tanh(self.first(x) * type(self).gain)))
    network.own_gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))
    type(network).gain = network.own_gain
    return network


def _drawn(make):
    """A layer or network of the file, of one seed wherever it is imported."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return make()


NETWORK = _drawn(Two)
SHARED = _drawn(lambda: nn.Linear(8, 6))
CONSTANT = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
REGISTRY: dict[str, nn.Module] = {}


def global_network() -> nn.Module:
    """One network of the file, whenever the function is called."""
    return NETWORK


def global_layer() -> nn.Module:
    """A new network around one layer of the file."""
    return made(first=SHARED)


def global_constant() -> nn.Module:
    """A tensor of the file, which nobody trains."""
    return made(lambda self, x: self.last(torch.relu(self.first(x) * CONSTANT)))


def global_registry() -> nn.Module:
    """Layers that forward looks up in a dict of the file, where the last network's are."""
    network = made(lambda self, x: REGISTRY["last"](torch.relu(self.first(x))))
    REGISTRY["last"] = network.last
    return network


@functools.cache
def cached_function() -> nn.Module:
    """A function with functools.cache."""
    return Two()


TEMPLATE = _drawn(Two)


def copy_of_global() -> nn.Module:
    """A deep copy of a network of the file."""
    return copy.deepcopy(TEMPLATE)


class Exchanging(Two):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 6)

    @contextlib.contextmanager
    def exchanged(self):
        self.first, self.other = self.other, self.first
        try:
            yield
        finally:
            self.first, self.other = self.other, self.first

    def forward(self, x):
        with self.exchanged():
            swapped = self.layers(x)
        return self.layers(x) + swapped


def context_manager() -> nn.Module:
    """A context manager that exchanges a layer for the time of a call."""
    return Exchanging()


def cached_mask() -> nn.Module:
    """A mask that is made at the first call and kept, in place of an attribute of the class."""

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.arange(8).remainder(2).to(x.dtype)
        return self.layers(x * self.mask)

    network = made(forward)
    type(network).mask = None
    return network


def cached_by_size() -> nn.Module:
    """Positions by the number of examples in a dict, as rotary embeddings keep them."""

    def forward(self, x):
        if x.shape not in self.positions:
            self.positions[x.shape] = torch.arange(8.0, dtype=x.dtype).cos().expand(x.shape)
        return self.layers(x + self.positions[x.shape])

    return made(forward, positions={})


class Positioned(Two):
    @functools.lru_cache  # noqa: B019 - people write it
    def positions(self, count):
        return torch.arange(count, dtype=torch.float64).sin()

    def forward(self, x):
        return self.layers(x + self.positions(8))


def lru_cached_method() -> nn.Module:
    """A method with functools.lru_cache that computes constants."""
    return Positioned()


class Remembering(Two):
    @functools.lru_cache  # noqa: B019 - people write it
    def gain(self):
        return self.first.weight.detach().norm()

    def forward(self, x):
        return self.layers(x) * self.gain()


def lru_cached_weight() -> nn.Module:
    """A method with functools.lru_cache over a parameter, which gives the first norm for ever."""
    return Remembering()


def generator_of_torch() -> nn.Module:
    """A torch.Generator that is used for the initial weights, and kept."""
    network = made(source=torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.first.weight.copy_(torch.randn(6, 8, generator=network.source) / 3)
    return network


def buffer_without_state() -> nn.Module:
    """A constant as a buffer with persistent=False."""
    network = made(lambda self, x: self.last(torch.relu(self.first(x) * self.gain)))
    network.register_buffer("gain", torch.rand(6), persistent=False)
    return network


def random_constant() -> nn.Module:
    """A random projection as a plain tensor, drawn when the network is made."""
    projection = torch.randn(8, 8, dtype=torch.float64)
    return made(lambda self, x: self.layers(x @ self.projection), projection=projection)


def starting_point() -> nn.Module:
    """A copy of the initial weights as a plain attribute, from which the distance is taken."""

    def forward(self, x):
        return self.layers(x) + self.anchor(x)[:, :3] * (self.first.weight - self.start).norm(p=1)

    network = made(forward)
    network.anchor = copy.deepcopy(network.first).double().requires_grad_(False)
    network.start = network.first.weight.detach().double().clone()
    return network
