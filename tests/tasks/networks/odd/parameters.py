"""Networks that change parameters in forward: moving averages of networks, clipping, what the data initialise."""

from __future__ import annotations

import copy

import torch
from odd_base import Two, made
from torch import nn
from torch.nn.functional import normalize

# Averages of networks.


@torch.no_grad()
def follow(ours, theirs, share=0.3):
    """Let parameters go a share of the way towards those of another network."""
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        one.lerp_(other, share)


class Teacher(nn.Module):
    """A network and its moving average, by which it is evaluated."""

    guarded = True

    def __init__(self):
        super().__init__()
        self.student = Two()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        if self.training or not self.guarded:
            follow(self.teacher, self.student)
        return self.student(x) if self.training else self.teacher(x)


def teacher() -> nn.Module:
    """A teacher by moving average, which does not require gradients and changes in training only."""
    return Teacher()


def teacher_always() -> nn.Module:
    """The same, which changes in evaluation, too."""
    network = Teacher()
    network.guarded = False
    return network


def teacher_of_buffers() -> nn.Module:
    """A moving average of a layer's weight as a buffer."""

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if not self.training:
            return hidden @ self.slow.T
        with torch.no_grad():
            self.slow.lerp_(self.last.weight, 0.3)
        return self.last(hidden)

    network = made(forward)
    network.register_buffer("slow", network.last.weight.detach().clone())
    return network


def teacher_in_a_list() -> nn.Module:
    """A teacher that is hidden in a list, so that no state holds it."""

    def forward(self, x):
        if not self.training:
            return self.hidden[0](x)
        follow(self.hidden[0], self.student)
        return self.student(x)

    network = made(forward, student=Two())
    network.hidden = [copy.deepcopy(network.student).double().requires_grad_(False)]
    return network


def momentum_contrast() -> nn.Module:
    """MoCo: a key encoder by moving average, a queue of keys and its pointer as buffers."""

    def forward(self, x):
        query = normalize(self.first(x), dim=1)
        logits = self.last(torch.cat([query, query @ self.queue.T.clone()], 1))
        if self.training:
            follow(self.key, self.first, 0.1)
            start = int(self.pointer)
            self.queue[start : start + 8] = normalize(self.key(x), dim=1)
            self.pointer[0] = (start + 8) % 16
        return logits

    buffers = {"queue": normalize(torch.randn(16, 6), dim=1), "pointer": torch.zeros(1, dtype=torch.long)}
    network = made(forward, buffers, last=nn.Linear(6 + 16, 3))
    network.key = copy.deepcopy(network.first).requires_grad_(False)
    return network


class Bootstrap(Teacher):
    def __init__(self):
        super().__init__()
        self.predictor = nn.Linear(3, 3)

    def forward(self, x):
        outputs = self.student(x)
        if not self.training:
            return outputs
        goal = self.teacher(x).detach()
        follow(self.teacher, self.student)
        return outputs + (self.predictor(outputs) - goal).square().mean()


def bootstrap() -> nn.Module:
    """BYOL: the loss pulls what a predictor gives towards a target network, a moving average."""
    return Bootstrap()


# Parameters.


def embedding_of_bounded_norm() -> nn.Module:
    """nn.Embedding with max_norm, which shortens rows in place."""

    def forward(self, x):
        return self.last(self.first((x * 4).long().clamp(-10, 9) + 10).mean(1))

    return made(forward, first=nn.Embedding(20, 6, max_norm=1.0))


def clamped_parameter() -> nn.Module:
    """A temperature that is clamped in place, as CLIP's."""

    def forward(self, x):
        self.scale.data.clamp_(0.45, 0.55)
        return self.layers(x) * self.scale.exp()

    return made(forward, scale=nn.Parameter(torch.tensor(0.5)))


def clipped_weights() -> nn.Module:
    """Weights that are clipped in training, as WGAN's."""

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.clamp_(-0.2, 0.2)
        return self.layers(x)

    return made(forward)


def data_exchanged() -> nn.Module:
    """A weight whose .data becomes another tensor, of unit rows, in training."""

    def forward(self, x):
        if self.training:
            self.first.weight.data = normalize(self.first.weight.data, dim=1)
        return self.layers(x)

    return made(forward)


def parameter_replaced() -> nn.Module:
    """A parameter that becomes a new one in each training pass."""

    def forward(self, x):
        if self.training:
            self.gain = nn.Parameter(self.gain.detach() * 0.95)
        return self.last(torch.relu(self.first(x)) * self.gain)

    return made(forward, gain=nn.Parameter(torch.linspace(0.5, 1.5, 6)))


def gradients_toggled() -> nn.Module:
    """Layers that are frozen for the first steps, by a counter that is a buffer."""

    def forward(self, x):
        if self.training:
            self.first.requires_grad_(int(self.steps) >= 7)
            self.steps += 1
        return self.layers(x)

    return made(forward, buffers={"steps": torch.zeros((), dtype=torch.long)})


def gradients_alternating() -> nn.Module:
    """Two layers that take turns in being trained, by a counter that is an attribute of the class at first."""

    def forward(self, x):
        if self.training:
            self.first.requires_grad_(self.steps % 2 == 0)
            self.last.requires_grad_(self.steps % 2 == 1)
            self.steps += 1
        return self.layers(x)

    network = made(forward)
    type(network).steps = 0
    return network


def activation_initialised() -> nn.Module:
    """ActNorm: the first batch decides its parameters, and a buffer says whether it was there."""

    def forward(self, x):
        if self.training and not self.ready.item():
            self.shift.data.copy_(-x.mean(0))
            self.gain.data.copy_(1 / x.std(0))
            self.ready.fill_(1)
        return self.layers((x + self.shift) * self.gain)

    shift, gain = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))
    return made(forward, shift=shift, gain=gain, buffers={"ready": torch.tensor(0, dtype=torch.uint8)})


def activation_initialised_by_attribute() -> nn.Module:
    """The same, where a plain attribute says it."""

    def forward(self, x):
        if self.training and not self.ready:
            self.shift.data.copy_(-x.mean(0))
            self.ready = True
        return self.layers(x + self.shift)

    return made(forward, shift=nn.Parameter(torch.zeros(8)), ready=False)


def layer_made_at_first_call() -> nn.Module:
    """A layer that is made, and drawn, at the first call."""

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if self.middle is None:
            self.middle = nn.Linear(hidden.shape[1], 6).to(x)
        return self.last(self.middle(hidden))

    return made(forward, middle=None)
