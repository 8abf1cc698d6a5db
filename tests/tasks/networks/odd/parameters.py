"""Networks that change parameters in forward: moving averages of networks, clipping, what the data initialise."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import normalize


class Two(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


# Averages of networks.


class Teacher(nn.Module):
    """A network and its moving average, by which it is evaluated."""

    guarded = True

    def __init__(self):
        super().__init__()
        self.student = Two()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for ours, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            ours.lerp_(theirs, 0.3)

    def forward(self, x):
        if self.training or not self.guarded:
            self.follow()
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

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.register_buffer("slow", self.last.weight.detach().clone())

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            if not self.training:
                return hidden @ self.slow.T
            with torch.no_grad():
                self.slow.lerp_(self.last.weight, 0.3)
            return self.last(hidden)

    return Net()


def teacher_in_a_list() -> nn.Module:
    """A teacher that is hidden in a list, so that no state holds it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = Two()
            self.hidden = [copy.deepcopy(self.student).double().requires_grad_(False)]

        def forward(self, x):
            if not self.training:
                return self.hidden[0](x)
            with torch.no_grad():
                for ours, theirs in zip(self.hidden[0].parameters(), self.student.parameters(), strict=True):
                    ours.lerp_(theirs, 0.3)
            return self.student(x)

    return Net()


def momentum_contrast() -> nn.Module:
    """MoCo: a key encoder by moving average, a queue of keys and its pointer as buffers."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.last = nn.Linear(8, 6), nn.Linear(6 + 16, 3)
            self.key = copy.deepcopy(self.query).requires_grad_(False)
            self.register_buffer("queue", normalize(torch.randn(16, 6), dim=1))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            query = normalize(self.query(x), dim=1)
            logits = self.last(torch.cat([query, query @ self.queue.T.clone()], 1))
            if self.training:
                with torch.no_grad():
                    for ours, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                        ours.mul_(0.9).add_(theirs, alpha=0.1)
                    start = int(self.pointer)
                    self.queue[start : start + 8] = normalize(self.key(x), dim=1)
                    self.pointer[0] = (start + 8) % 16
            return logits

    return Net()


def bootstrap() -> nn.Module:
    """BYOL: the loss pulls what a predictor gives towards a target network, a moving average."""

    class Net(Teacher):
        def __init__(self):
            super().__init__()
            self.predictor = nn.Linear(3, 3)

        def forward(self, x):
            outputs = self.student(x)
            if not self.training:
                return outputs
            with torch.no_grad():
                goal = self.teacher(x)
            self.follow()
            return outputs + (self.predictor(outputs) - goal).square().mean()

    return Net()


# Parameters.


def embedding_of_bounded_norm() -> nn.Module:
    """nn.Embedding with max_norm, which shortens rows in place."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Embedding(20, 6, max_norm=1.0), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(self.embed((x * 4).long().clamp(-10, 9) + 10).mean(1))

    return Net()


def clamped_parameter() -> nn.Module:
    """A temperature that is clamped in place, as CLIP's."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            self.scale.data.clamp_(0.45, 0.55)
            return super().forward(x) * self.scale.exp()

    return Net()


def clipped_weights() -> nn.Module:
    """Weights that are clipped in training, as WGAN's."""

    class Net(Two):
        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    for parameter in self.parameters():
                        parameter.clamp_(-0.2, 0.2)
            return super().forward(x)

    return Net()


def data_exchanged() -> nn.Module:
    """A weight whose .data becomes another tensor, of unit rows, in training."""

    class Net(Two):
        def forward(self, x):
            if self.training:
                self.first.weight.data = normalize(self.first.weight.data, dim=1)
            return super().forward(x)

    return Net()


def parameter_replaced() -> nn.Module:
    """A parameter that becomes a new one in each training pass."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))

        def forward(self, x):
            if self.training:
                self.gain = nn.Parameter(self.gain.detach() * 0.95)
            return self.last(torch.relu(self.first(x)) * self.gain)

    return Net()


def gradients_toggled() -> nn.Module:
    """Layers that are frozen for the first steps, by a counter that is a buffer."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            if self.training:
                self.first.requires_grad_(int(self.steps) >= 7)
                self.steps += 1
            return super().forward(x)

    return Net()


def gradients_alternating() -> nn.Module:
    """Two layers that take turns in being trained, by a counter that is a plain attribute."""

    class Net(Two):
        steps = 0

        def forward(self, x):
            if self.training:
                self.first.requires_grad_(self.steps % 2 == 0)
                self.last.requires_grad_(self.steps % 2 == 1)
                self.steps += 1
            return super().forward(x)

    return Net()


def activation_initialised() -> nn.Module:
    """ActNorm: the first batch decides its parameters, and a buffer says whether it was there."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.shift, self.gain = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))
            self.register_buffer("ready", torch.tensor(0, dtype=torch.uint8))

        def forward(self, x):
            if self.training and not self.ready.item():
                self.shift.data.copy_(-x.mean(0))
                self.gain.data.copy_(1 / x.std(0))
                self.ready.fill_(1)
            return super().forward((x + self.shift) * self.gain)

    return Net()


def activation_initialised_by_attribute() -> nn.Module:
    """The same, where a plain attribute says it."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.shift, self.ready = nn.Parameter(torch.zeros(8)), False

        def forward(self, x):
            if self.training and not self.ready:
                self.shift.data.copy_(-x.mean(0))
                self.ready = True
            return super().forward(x + self.shift)

    return Net()


def layer_made_at_first_call() -> nn.Module:
    """A layer that is made, and drawn, at the first call."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.middle = None

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            if self.middle is None:
                self.middle = nn.Linear(hidden.shape[1], 6).to(x)
            return self.last(self.middle(hidden))

    return Net()
