"""Networks that use torch's own machinery: scripts, traces, parametrizations, functional calls."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm


class Two(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


# Scripts, traces, and the compiler.


def scripted() -> nn.Module:
    """torch.jit.script of the whole network."""
    return torch.jit.script(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)))


def scripted_part() -> nn.Module:
    """torch.jit.script of one layer."""
    network = Two()
    network.first = torch.jit.script(nn.Sequential(nn.Linear(8, 6), nn.Tanh()))
    return network


def scripted_norm() -> nn.Module:
    """torch.jit.script of a network with BatchNorm."""
    return torch.jit.script(nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))


def traced() -> nn.Module:
    """torch.jit.trace of the whole network."""
    network = Two().double()
    return torch.jit.trace(network, torch.zeros(2, 8, dtype=torch.float64))


def traced_part() -> nn.Module:
    """torch.jit.trace of one layer."""
    network = Two().double()
    network.first = torch.jit.trace(network.first, torch.zeros(2, 8, dtype=torch.float64))
    return network


def scripted_function() -> nn.Module:
    """A function by torch.jit.script as the activation."""
    network = Two()

    def act(x):
        return torch.tanh(x) + 0.5 * x

    network.act = torch.jit.script(act)
    network.forward = lambda x: network.last(network.act(network.first(x)))
    return network


def compiled() -> nn.Module:
    """torch.compile of the whole network."""
    return torch.compile(Two(), backend="eager")


def compiled_part() -> nn.Module:
    """torch.compile of one layer."""
    network = Two()
    network.first = torch.compile(nn.Sequential(nn.Linear(8, 6), nn.Tanh()), backend="eager")
    return network


def compiled_in_place() -> nn.Module:
    """A layer's own `compile`."""
    network = Two()
    network.first.compile(backend="eager")
    return network


def compiled_method() -> nn.Module:
    """torch.compile of a bound method."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.fast = torch.compile(self.slow, backend="eager")

        def slow(self, x):
            return torch.tanh(self.first(x))

        def forward(self, x):
            return self.last(self.fast(x))

    return Net()


def traced_by_fx() -> nn.Module:
    """torch.fx.symbolic_trace of the network."""
    return torch.fx.symbolic_trace(Two())


# Parametrizations, old and new.


def weight_norm_of_old() -> nn.Module:
    """weight_norm by a hook."""
    network = Two().double()
    network.first = weight_norm(network.first)
    return network


def weight_norm_of_new() -> nn.Module:
    """weight_norm as a parametrization."""
    network = Two()
    parametrizations.weight_norm(network.first)
    return network


def spectral_norm_of_old() -> nn.Module:
    """spectral_norm by a hook."""
    network = Two().double()
    network.first = spectral_norm(network.first)
    return network


def spectral_norm_of_new() -> nn.Module:
    """spectral_norm as a parametrization."""
    network = Two()
    parametrizations.spectral_norm(network.first)
    return network


def orthogonal() -> nn.Module:
    """An orthogonal weight."""
    network = Two().double()
    parametrizations.orthogonal(network.first)
    return network


def own_parametrization() -> nn.Module:
    """A parametrization of one's own with a parameter."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(0.5))

        def forward(self, weight):
            return weight * torch.sigmoid(self.slope * weight)

    network = Two()
    parametrize.register_parametrization(network.first, "weight", Masked())
    return network


def parametrization_over_layer() -> nn.Module:
    """A parametrization that is a lambda over another layer's weight."""

    class Shifted(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.shift = shift

        def forward(self, weight):
            return weight + self.shift()

    network = Two()
    parametrize.register_parametrization(network.first, "bias", Shifted(lambda: network.last.weight.mean(0)))
    return network


def pruned() -> nn.Module:
    """A pruned layer, with its mask."""
    network = Two().double()
    prune.l1_unstructured(network.first, "weight", amount=0.5)
    return network


def pruned_for_good() -> nn.Module:
    """A pruned layer whose mask was removed."""
    network = Two().double()
    prune.remove(prune.random_structured(network.first, "weight", amount=0.5, dim=0), "weight")
    return network


def weights_computed() -> nn.Module:
    """A layer whose weight was deleted, and is set in forward from two factors."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            del self.first.weight
            self.left, self.right = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 8))

        def forward(self, x):
            self.first.weight = self.left @ self.right / 2
            return super().forward(x)

    return Net()


# Functional calls, shared weights, and layers of torch.


def functional_inside() -> nn.Module:
    """torch.func.functional_call in forward, with weights that are scaled."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scale = Two(), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            weights = {name: weight * self.scale for name, weight in self.body.named_parameters()}
            return functional_call(self.body, weights, (x,))

    return Net()


def ensemble() -> nn.Module:
    """An ensemble by vmap, whose members' weights are stacked, around a network on the device meta."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            weights, _ = stack_module_state([Two() for _ in range(3)])
            self.weights = nn.ParameterDict({n.replace(".", "-"): w.detach() for n, w in weights.items()})
            self.base = [Two().to("meta")]

        def forward(self, x):
            weights = {name.replace("-", "."): weight for name, weight in self.weights.items()}
            return vmap(lambda w: functional_call(self.base[0], w, (x,)))(weights).mean(0)

    return Net()


def hypernetwork() -> nn.Module:
    """Weights that another network computes of an embedding."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.maker, self.last = nn.Parameter(torch.randn(4)), nn.Linear(4, 48), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(torch.relu(x @ self.maker(self.code).reshape(8, 6)))

    return Net()


def adapter() -> nn.Module:
    """LoRA as a wrapper around a frozen layer."""

    class Adapted(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 6, bias=False)

        def forward(self, x):
            return self.layer(x) + self.up(self.down(x))

    network = Two()
    network.first = Adapted(network.first)
    return network


def tied_weights() -> nn.Module:
    """One weight of two layers."""
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    network[2].weight = network[0].weight
    return network


def tied_layers() -> nn.Module:
    """One layer at two places."""
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(8, 3))


def recurrent() -> nn.Module:
    """nn.LSTM, whose weights are kept flat."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps, self.last = nn.LSTM(2, 6, batch_first=True), nn.Linear(6, 3)
            self.steps.flatten_parameters()

        def forward(self, x):
            return self.last(self.steps(x.reshape(len(x), 4, 2))[0][:, -1])

    return Net()
