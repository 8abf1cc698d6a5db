"""Networks with hooks of torch: of forward passes, of gradients, of states."""

from __future__ import annotations

import torch
from odd_base import Two, made
from torch import nn

GAIN = torch.linspace(0.5, 1.5, 6)


def forward_hook() -> nn.Module:
    """A forward hook over a parameter of the network."""
    network, gain = Two(), nn.Parameter(GAIN.clone())
    network.gain = gain
    network.first.register_forward_hook(lambda module, inputs, output: output * gain)
    return network


def forward_hook_on_root() -> nn.Module:
    """A forward hook of the network itself, over one of its layers."""
    network, head = Two(), nn.Linear(3, 3)
    network.head = head
    network.register_forward_hook(lambda module, inputs, output: output + head(output))
    return network


def forward_hook_of_module() -> nn.Module:
    """A forward hook that reads its module only."""
    network = Two()
    network.first.gain = nn.Parameter(GAIN.clone())
    network.first.register_forward_hook(lambda module, inputs, output: output * module.gain)
    return network


def forward_pre_hook() -> nn.Module:
    """A forward pre-hook over a layer of the network."""
    network, embed = Two(), nn.Linear(8, 8)
    network.embed = embed
    network.first.register_forward_pre_hook(lambda module, inputs: (torch.tanh(embed(inputs[0])),))
    return network


class Bound(Two):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(GAIN.clone())
        self.first.register_forward_hook(self.scaled)

    def scaled(self, module, inputs, output):
        return output * self.gain


def bound_hook() -> nn.Module:
    """A forward hook that is a method of the network."""
    return Bound()


def captured_features() -> nn.Module:
    """A hook that puts a layer's output in a dict of the network, where forward reads it."""
    network = made(lambda self, x: self.layers(x) + self.aside(self.features["first"]), features={})
    network.aside = nn.Linear(6, 3)
    network.first.register_forward_hook(lambda module, inputs, output: network.features.update(first=output))
    return network


def with_factor():
    """A network, and a buffer of it."""
    network = made(buffers={"factor": torch.linspace(0.2, 2.0, 6, dtype=torch.float64)})
    return network, network.factor


def full_backward_hook() -> nn.Module:
    """A full backward pre-hook that scales gradients by a buffer."""
    network, factor = with_factor()
    network.first.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * factor,))
    return network


def hook_after_gradient() -> nn.Module:
    """A hook after a gradient is accumulated that scales it by a buffer."""
    network, factor = with_factor()
    network.first.bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * factor))
    return network


def state_dict_hooks() -> nn.Module:
    """Hooks of state_dict and load_state_dict that are told of each."""
    network = made(calls=[])
    network.register_state_dict_post_hook(lambda module, state, prefix, metadata: module.calls.append(prefix))
    network.register_load_state_dict_pre_hook(lambda module, state, *more: module.calls.append(len(state)))
    return network


def parameter_hook() -> nn.Module:
    """A hook of a parameter that masks its gradient with a buffer."""
    network = made(buffers={"mask": torch.arange(48.0).reshape(6, 8).remainder(2)})
    network.first.weight.register_hook(lambda gradient: gradient * network.mask)
    return network


def hook_by_other_parameter() -> nn.Module:
    """A hook of one parameter that adds the pull towards another."""
    network, anchor = Two(), nn.Linear(8, 6)
    network.anchor = anchor.requires_grad_(False)
    weight = network.first.weight
    weight.register_hook(lambda gradient: gradient + 0.5 * (weight - anchor.weight).detach())
    return network
