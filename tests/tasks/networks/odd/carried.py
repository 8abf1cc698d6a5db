"""Networks that carry something from one forward pass to the next: statistics, counters, queues, generators."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import dropout


class Two(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


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
