"""Networks that change themselves in forward: moving averages, counters, queues, clipping, what is drawn."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import dropout, normalize


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


# Statistics.


def norm_in_evaluation() -> nn.Module:
    """A BatchNorm that the function put in evaluation mode, so that its statistics are frozen."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.norm.running_mean.fill_(0.2)
            self.norm.eval()

        def forward(self, x):
            return self.last(torch.relu(self.norm(self.first(x))))

    return Net()


def all_in_evaluation() -> nn.Module:
    """A network with BatchNorm and dropout in evaluation mode, as from_pretrained gives it."""
    layers = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)
    return nn.Sequential(*layers).eval()


def dropout_in_evaluation() -> nn.Module:
    """Dropout that the function put in evaluation mode, in a network that is trained."""
    network = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    network[1].eval()
    return network


def norm_of_all_batches() -> nn.Module:
    """BatchNorm with momentum=None: the mean over all batches, which it counts."""
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 3))


class Centred(Two):
    """Inputs from which a moving average is taken, in training and evaluation."""

    def forward(self, x):
        if self.training:
            self.mean = self.mean * 0.7 + x.mean(0) * 0.3
        return super().forward(x - self.mean)


def mean_as_attribute() -> nn.Module:
    """A moving average as a plain tensor."""
    network = Centred()
    network.mean = torch.zeros(8, dtype=torch.float64)
    return network


def mean_as_buffer() -> nn.Module:
    """A moving average as a buffer, which forward assigns anew."""
    network = Centred()
    network.register_buffer("mean", torch.zeros(8))
    return network


def mean_as_buffer_without_state() -> nn.Module:
    """A moving average as a buffer with persistent=False."""
    network = Centred()
    network.register_buffer("mean", torch.zeros(8), persistent=False)
    return network


class Largest(Two):
    """Inputs that are divided by the largest seen, a buffer."""

    guarded = True

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.ones(8))

    def forward(self, x):
        if self.training or not self.guarded:
            with torch.no_grad():
                torch.maximum(self.largest, x.abs().amax(0), out=self.largest)
        return super().forward(x / self.largest)


def running_maximum() -> nn.Module:
    """The largest input as a buffer, which changes in training."""
    return Largest()


def running_maximum_always() -> nn.Module:
    """The same, which changes in evaluation, too."""
    network = Largest()
    network.guarded = False
    return network


def codebook() -> nn.Module:
    """A codebook by moving averages of counts and sums, as buffers, as VQ-VAE's."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            book = torch.randn(4, 6)
            self.register_buffer("book", book)
            self.register_buffer("counts", torch.ones(4))
            self.register_buffer("sums", book.clone())

        def forward(self, x):
            hidden = self.first(x)
            chosen = torch.cdist(hidden.detach(), self.book).argmin(1)
            quantised = hidden + (self.book[chosen] - hidden).detach()
            if self.training:
                hot = nn.functional.one_hot(chosen, 4).to(hidden)
                self.counts.data.mul_(0.8).add_(hot.sum(0), alpha=0.2)
                self.sums.data.mul_(0.8).add_(hot.T @ hidden.detach(), alpha=0.2)
                self.book.data.copy_(self.sums / self.counts[:, None])
            return self.last(torch.relu(quantised))

    return Net()


def queue_of_features() -> nn.Module:
    """The last inputs as a buffer, with a pointer that is an integer."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.zeros(12, 8))
            self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            outputs = super().forward(x + self.queue.mean(0))
            if self.training:
                places = (torch.arange(len(x)) + self.pointer) % 12
                self.queue[places] = x.detach()
                self.pointer += len(x)
            return outputs

    return Net()


# Counters, and what is carried from batch to batch.


class Annealed(Two):
    """Outputs that grow with the number of steps."""

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x) * (1 + 0.1 * self.steps)


def counter_as_buffer() -> nn.Module:
    """A number of steps, int64, as a buffer that anneals the outputs."""
    network = Annealed()
    network.register_buffer("steps", torch.zeros((), dtype=torch.long))
    return network


def counter_as_attribute() -> nn.Module:
    """The same as a plain attribute."""
    network = Annealed()
    network.steps = 0
    return network


def counter_in_a_closure() -> nn.Module:
    """The same in a dict that a function holds."""
    network, kept = Two(), {"steps": 0}

    def annealed(module, inputs, outputs):
        kept["steps"] += module.training
        return outputs * (1 + 0.1 * kept["steps"])

    network.register_forward_hook(annealed)
    return network


def counter_of_warm_up() -> nn.Module:
    """A dropout that begins after some steps, later than the first round, by a plain attribute."""

    class Net(Two):
        steps = 0

        def forward(self, x):
            self.steps += self.training
            return super().forward(dropout(x, 0.5, self.training and self.steps > 7))

    return Net()


def counter_of_gradients() -> nn.Module:
    """A hook of a parameter that scales its gradient by a number of steps it counts itself."""
    network, kept = Two(), {"steps": 0}

    def warmed(gradient):
        kept["steps"] += 1
        return gradient * min(1.0, kept["steps"] / 10)

    network.first.weight.register_hook(warmed)
    return network


def counter_only() -> nn.Module:
    """A number of calls and a log of norms, which nothing depends on."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.calls, self.log = 0, []

        def forward(self, x):
            self.calls += 1
            self.log.append(x.norm().item())
            return super().forward(x)

    return Net()


def last_features() -> nn.Module:
    """The last features as an attribute, to look at, with their graph."""

    class Net(Two):
        def forward(self, x):
            self.features = self.first(x)
            return self.last(torch.relu(self.features))

    return Net()


def hidden_state() -> nn.Module:
    """A hidden state that is carried from one training batch to the next."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.state = torch.zeros(6, dtype=torch.float64)

        def forward(self, x):
            hidden = torch.tanh(self.first(x) + self.state)
            if self.training:
                self.state = hidden.mean(0).detach()
            return self.last(hidden)

    return Net()


# What is drawn.


def dropout_of_own_generator() -> nn.Module:
    """Dropout by a torch.Generator of the network's own."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.source = torch.Generator().manual_seed(3)

        def forward(self, x):
            if self.training:
                x = x * torch.bernoulli(torch.full_like(x, 0.7), generator=self.source)
            return super().forward(x)

    return Net()


def noise_of_own_numpy() -> nn.Module:
    """Noise by a generator of numpy of the network's own."""

    class Net(Two):
        def __init__(self):
            super().__init__()
            self.source = np.random.default_rng(3)

        def forward(self, x):
            if self.training:
                x = x + torch.from_numpy(self.source.normal(size=tuple(x.shape)))
            return super().forward(x)

    return Net()


def noise_of_torch() -> nn.Module:
    """Noise of torch's generator in training."""

    class Net(Two):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x) if self.training else x)

    return Net()


def noise_of_numpy() -> nn.Module:
    """Noise of numpy's generator in training."""

    class Net(Two):
        def forward(self, x):
            return super().forward(x + np.random.normal() if self.training else x)

    return Net()


def noise_of_random() -> nn.Module:
    """A factor of Python's generator in training."""

    class Net(Two):
        def forward(self, x):
            return super().forward(x * random.uniform(0.5, 1.5) if self.training else x)

    return Net()
