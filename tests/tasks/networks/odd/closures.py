"""Networks that reach layers or parameters through functions: closures, partials, bound methods."""

from __future__ import annotations

import functools
import types
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn.functional import linear


class Two(nn.Module):
    """Two layers, and what is done between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)
        self.act = torch.relu

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class Scaled(Two):
    """With a factor that is learned, a single number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))


class Called(nn.Module):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def lambda_over_scale() -> nn.Module:
    """An activation that is a lambda over self.scale."""
    network = Scaled()
    network.act = lambda hidden: torch.relu(hidden) * network.scale
    return network


def lambda_over_layer() -> nn.Module:
    """A lambda over one more layer, with a residual connection."""
    network = Two()
    network.middle = nn.Linear(6, 6)
    network.act = lambda hidden: hidden + torch.relu(network.middle(hidden))
    return network


def function_over_parameter() -> nn.Module:
    """A local function over a parameter, a vector, that is a local variable."""
    network, gain = Two(), nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def act(hidden):
        return torch.tanh(hidden * gain)

    network.gain, network.act = gain, act
    return network


def function_over_layers() -> nn.Module:
    """A body that is a local function over layers, which a ModuleList registers."""
    first, last = nn.Linear(8, 6), nn.Linear(6, 3)

    def body(x):
        return last(torch.relu(first(x)))

    network = Called(body)
    network.layers = nn.ModuleList([first, last])
    return network


def layers_between_lambdas() -> nn.Module:
    """A Sequential in which lambdas over a registered parameter are layers."""
    slope = nn.Parameter(torch.tensor(0.3))
    network = nn.Sequential(nn.Linear(8, 6), Called(lambda h: torch.where(h > 0, h, h * slope)), nn.Linear(6, 3))
    network.slope = slope
    return network


def dispatch_table() -> nn.Module:
    """Activations by name in a dict, of which one is a lambda over a parameter."""
    network = Scaled()
    network.acts = {"relu": torch.relu, "scaled": lambda hidden: torch.relu(hidden) * network.scale}
    network.act = lambda hidden: network.acts["scaled"](hidden) + network.acts["relu"](hidden)
    return network


def curried_twice() -> nn.Module:
    """A function that gives a function over a layer."""
    network = Two()

    def residual(layer):
        def apply(hidden):
            return torch.relu(hidden + layer(hidden))

        return apply

    network.middle = nn.Linear(6, 6)
    network.act = residual(network.middle)
    return network


def tied_by_closure() -> nn.Module:
    """A decoder that is a lambda over the encoder's weight."""
    network = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
    weight, bias = network[0].weight, nn.Parameter(torch.zeros(8))
    network.append(Called(lambda hidden: linear(hidden, weight.T, bias)))
    network.append(nn.Linear(8, 3))
    network.bias = bias
    return network


def partial_over_forward() -> nn.Module:
    """functools.partial over a function, with a layer as its argument."""
    network = Two()
    network.middle = nn.Linear(6, 6)
    network.act = functools.partial(lambda layer, hidden: hidden + torch.relu(layer(hidden)), network.middle)
    return network


def partial_over_weight() -> nn.Module:
    """functools.partial of torch's linear over a weight and a bias."""
    network = Two()
    network.weight, network.bias = nn.Parameter(torch.eye(6)), nn.Parameter(torch.zeros(6))
    network.act = functools.partial(linear, weight=network.weight, bias=network.bias)
    return network


def bound_method() -> nn.Module:
    """The forward of a layer as an attribute."""
    network = Two()
    network.middle = nn.Linear(6, 6)
    network.act = network.middle.forward
    return network


def default_argument() -> nn.Module:
    """A layer as the default of an argument."""
    network = Two()
    network.middle = nn.Linear(6, 6)

    def act(hidden, layer=network.middle):
        return torch.relu(layer(hidden))

    network.act = act
    return network


def forward_is_a_lambda() -> nn.Module:
    """A forward that is set on the instance: a lambda over the network."""
    network = Two()
    network.forward = lambda x: network.last(torch.tanh(network.first(x)))
    return network


def forward_by_method_type() -> nn.Module:
    """A forward that is set on the instance with types.MethodType, as patches of Hugging Face's models do."""

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

    network = Two()
    network.forward = types.MethodType(forward, network)
    return network


def forward_is_wrapped() -> nn.Module:
    """A decorator around the bound forward, as accelerate's for mixed precision."""
    network = Two()
    inner = network.forward

    @functools.wraps(inner)
    def forward(*args, **kwargs):
        return inner(*args, **kwargs) * 2

    network.forward = forward
    return network


def layer_forward_is_wrapped() -> nn.Module:
    """LoRA by replacing a frozen layer's forward with a function over its old one."""
    network = Two()
    network.first.requires_grad_(False)
    network.down, network.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 6, bias=False)
    inner = network.first.forward
    network.first.forward = lambda x: inner(x) + network.up(network.down(x))
    return network


def function_of_autograd() -> nn.Module:
    """A torch.autograd.Function, made in a function, over a buffer."""
    network = Two()
    network.register_buffer("slope", torch.linspace(0.5, 1.5, 6, dtype=torch.float64))
    slope = network.slope

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return torch.sign(hidden) * slope

        @staticmethod
        def backward(ctx, gradient):
            return gradient * slope

    network.act = Straight.apply
    return network


def class_over_layer() -> nn.Module:
    """A class within a function, whose forward reads a layer of that function."""
    inner = nn.Linear(8, 6)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = inner, nn.Linear(6, 3)

        def forward(self, x):
            return self.last(torch.relu(inner(x)))

    return Outer()


CURRENT: ContextVar[nn.Linear] = ContextVar("current")


def context_variable() -> nn.Module:
    """A layer in a ContextVar, which forward reads."""
    network = Two()
    network.middle = nn.Linear(6, 6)
    CURRENT.set(network.middle)
    network.act = lambda hidden: torch.relu(CURRENT.get()(hidden))
    return network
