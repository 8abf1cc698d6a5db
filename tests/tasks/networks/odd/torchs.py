"""Networks that use torch's own machinery: scripts, traces, parametrizations, functional calls."""

from __future__ import annotations

import torch
from odd_base import Two, made
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

INPUTS = torch.zeros(2, 8, dtype=torch.float64)


def with_first(change):
    """A network whose first layer is what this makes of it."""
    network = Two().double()
    network.first = change(network.first)
    return network


# Scripts, traces, and the compiler.


def scripted() -> nn.Module:
    """torch.jit.script of a whole network."""
    return torch.jit.script(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)))


def scripted_norm() -> nn.Module:
    """torch.jit.script of a whole network, with BatchNorm."""
    return torch.jit.script(nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))


def scripted_part() -> nn.Module:
    """torch.jit.script of one layer."""
    return with_first(lambda layer: torch.jit.script(nn.Sequential(layer, nn.Tanh())))


def traced() -> nn.Module:
    """torch.jit.trace of the whole network."""
    return torch.jit.trace(Two().double(), INPUTS)


def traced_part() -> nn.Module:
    """torch.jit.trace of one layer."""
    return with_first(lambda layer: torch.jit.trace(layer, INPUTS))


def scripted_function() -> nn.Module:
    """A function by torch.jit.script as the activation."""

    def act(x):
        return torch.tanh(x) + 0.5 * x

    return made(act=torch.jit.script(act))


def compiled() -> nn.Module:
    """torch.compile of the whole network."""
    return torch.compile(Two(), backend="eager")


def compiled_part() -> nn.Module:
    """torch.compile of one layer."""
    return with_first(lambda layer: torch.compile(nn.Sequential(layer, nn.Tanh()), backend="eager"))


def compiled_in_place() -> nn.Module:
    """A layer's own `compile`."""
    network = Two()
    network.first.compile(backend="eager")
    return network


def compiled_method() -> nn.Module:
    """torch.compile of a bound method."""
    network = made(lambda self, x: self.fast(x))
    network.fast = torch.compile(network.layers, backend="eager")
    return network


def traced_by_fx() -> nn.Module:
    """torch.fx.symbolic_trace of the network."""
    return torch.fx.symbolic_trace(Two())


# Parametrizations, old and new.


def weight_norm_of_old() -> nn.Module:
    """weight_norm by a hook."""
    return with_first(weight_norm)


def weight_norm_of_new() -> nn.Module:
    """weight_norm as a parametrization."""
    return with_first(parametrizations.weight_norm)


def spectral_norm_of_old() -> nn.Module:
    """spectral_norm by a hook."""
    return with_first(spectral_norm)


def spectral_norm_of_new() -> nn.Module:
    """spectral_norm as a parametrization."""
    return with_first(parametrizations.spectral_norm)


def orthogonal() -> nn.Module:
    """An orthogonal weight."""
    return with_first(parametrizations.orthogonal)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.5))

    def forward(self, weight):
        return weight * torch.sigmoid(self.slope * weight)


def own_parametrization() -> nn.Module:
    """A parametrization of one's own with a parameter."""
    return with_first(lambda layer: parametrize.register_parametrization(layer, "weight", Masked()))


class Shifted(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, weight):
        return weight + self.shift()


def parametrization_over_layer() -> nn.Module:
    """A parametrization that is a lambda over another layer's weight."""
    network = Two()
    parametrize.register_parametrization(network.first, "bias", Shifted(lambda: network.last.weight.mean(0)))
    return network


def pruned() -> nn.Module:
    """A pruned layer, with its mask."""
    return with_first(lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5))


def pruned_for_good() -> nn.Module:
    """A pruned layer whose mask was removed."""
    return with_first(lambda layer: prune.remove(prune.random_structured(layer, "weight", 0.5, dim=0), "weight"))


def weights_computed() -> nn.Module:
    """A layer whose weight was deleted, and is set in forward from two factors."""

    def forward(self, x):
        self.first.weight = self.left @ self.right / 2
        return self.layers(x)

    network = made(forward, left=nn.Parameter(torch.randn(6, 2)), right=nn.Parameter(torch.randn(2, 8)))
    del network.first.weight
    return network


# Functional calls, shared weights, and layers of torch.


def functional_inside() -> nn.Module:
    """torch.func.functional_call in forward, with weights that are scaled."""

    def forward(self, x):
        weights = {name: weight * self.scale for name, weight in self.body.named_parameters()}
        return functional_call(self.body, weights, (x,))

    return made(forward, body=Two(), scale=nn.Parameter(torch.tensor(1.5)), first=None, last=None)


def ensemble() -> nn.Module:
    """An ensemble by vmap, whose members' weights are stacked, around a network on the device meta."""

    def forward(self, x):
        weights = {name.replace("-", "."): weight for name, weight in self.weights.items()}
        return vmap(lambda w: functional_call(self.base[0], w, (x,)))(weights).mean(0)

    weights, _ = stack_module_state([Two() for _ in range(3)])
    stacked = nn.ParameterDict({name.replace(".", "-"): w.detach() for name, w in weights.items()})
    return made(forward, weights=stacked, base=[Two().to("meta")], first=None, last=None)


def hypernetwork() -> nn.Module:
    """Weights that another network computes of an embedding."""

    def forward(self, x):
        return self.last(torch.relu(x @ self.first(self.code).reshape(8, 6)))

    return made(forward, code=nn.Parameter(torch.randn(4)), first=nn.Linear(4, 48))


class Adapted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def adapter() -> nn.Module:
    """LoRA as a wrapper around a frozen layer."""
    return with_first(Adapted)


def checkpointed() -> nn.Module:
    """The first layer is computed again in the backward pass, whose old form gives it no gradient."""
    return made(lambda self, x: self.last(checkpoint(self.first, x, use_reentrant=True)))


def checkpointed_frozen() -> nn.Module:
    """The old form of checkpoints, of a layer that is not trained."""
    network = checkpointed()
    network.first.requires_grad_(False)
    return network


def without_gradients() -> nn.Module:
    """No parameter gets a gradient."""
    return made(torch.no_grad()(Two.layers))


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
    network = made(lambda self, x: self.last(self.first(x.reshape(len(x), 4, 2))[0][:, -1]))
    network.first = nn.LSTM(2, 6, batch_first=True)
    network.first.flatten_parameters()
    return network
