"""Networks that carry something from one forward pass to the next: statistics, counters, queues, generators."""

from __future__ import annotations

import random

import numpy as np
import torch
from odd_base import Two, made
from torch import nn
from torch.nn.functional import dropout, one_hot

# Statistics.


def norm_in_evaluation() -> nn.Module:
    """A BatchNorm that the function put in evaluation mode, so that its statistics are frozen."""
    norm = nn.BatchNorm1d(6).eval()
    norm.running_mean.fill_(0.2)
    return made(lambda self, x: self.last(torch.relu(self.norm(self.first(x)))), norm=norm)


def all_in_evaluation() -> nn.Module:
    """A network with BatchNorm and dropout in evaluation mode, as from_pretrained gives it."""
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)).eval()


def dropout_in_evaluation() -> nn.Module:
    """Dropout that the function put in evaluation mode, in a network that is trained."""
    return nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5).eval(), nn.Linear(6, 3))


def norm_of_all_batches() -> nn.Module:
    """BatchNorm with momentum=None: the mean over all batches, which it counts."""
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 3))


def centred(self, x):
    """Of inputs from which a moving average is taken, in training and evaluation."""
    if self.training:
        self.mean = self.mean * 0.7 + x.mean(0) * 0.3
    return self.layers(x - self.mean)


def mean_as_attribute() -> nn.Module:
    """A moving average as a plain tensor."""
    return made(centred, mean=torch.zeros(8, dtype=torch.float64))


def mean_as_buffer() -> nn.Module:
    """A moving average as a buffer, which forward assigns anew."""
    return made(centred, buffers={"mean": torch.zeros(8)})


def mean_as_buffer_without_state() -> nn.Module:
    """A moving average as a buffer with persistent=False."""
    network = made(centred)
    network.register_buffer("mean", torch.zeros(8), persistent=False)
    return network


def divided(self, x):
    """Of inputs that are divided by the largest seen, a buffer."""
    if self.training or not self.guarded:
        with torch.no_grad():
            torch.maximum(self.largest, x.abs().amax(0), out=self.largest)
    return self.layers(x / self.largest)


def running_maximum() -> nn.Module:
    """The largest input as a buffer, which changes in training."""
    return made(divided, buffers={"largest": torch.ones(8)}, guarded=True)


def running_maximum_always() -> nn.Module:
    """The same, which changes in evaluation, too."""
    return made(divided, buffers={"largest": torch.ones(8)}, guarded=False)


def codebook() -> nn.Module:
    """A codebook by moving averages of counts and sums, as buffers, as VQ-VAE's."""

    def forward(self, x):
        hidden = self.first(x)
        chosen = torch.cdist(hidden.detach(), self.book).argmin(1)
        quantised = hidden + (self.book[chosen] - hidden).detach()
        if self.training:
            hot = one_hot(chosen, 4).to(hidden)
            self.counts.data.mul_(0.8).add_(hot.sum(0), alpha=0.2)
            self.sums.data.mul_(0.8).add_(hot.T @ hidden.detach(), alpha=0.2)
            self.book.data.copy_(self.sums / self.counts[:, None])
        return self.last(torch.relu(quantised))

    book = torch.randn(4, 6)
    return made(forward, buffers={"book": book, "counts": torch.ones(4), "sums": book.clone()})


def queue_of_features() -> nn.Module:
    """The last inputs as a buffer, with a pointer that is an integer."""

    def forward(self, x):
        outputs = self.layers(x + self.queue.mean(0))
        if self.training:
            self.queue[(torch.arange(len(x)) + self.pointer) % 12] = x.detach()
            self.pointer += len(x)
        return outputs

    return made(forward, buffers={"queue": torch.zeros(12, 8), "pointer": torch.zeros((), dtype=torch.long)})


# Counters, and what is carried from batch to batch.


def annealed(self, x):
    """Of outputs that grow with the number of steps."""
    if self.training:
        self.steps += 1
    return self.layers(x) * (1 + 0.1 * self.steps)


def counter_as_buffer() -> nn.Module:
    """A number of steps, int64, as a buffer that anneals the outputs."""
    return made(annealed, buffers={"steps": torch.zeros((), dtype=torch.long)})


def counter_as_attribute() -> nn.Module:
    """The same as a plain attribute."""
    return made(annealed, steps=0)


def counter_in_a_closure() -> nn.Module:
    """The same in a dict that a function holds."""
    network, kept = Two(), {"steps": 0}

    def anneal(module, inputs, outputs):
        kept["steps"] += module.training
        return outputs * (1 + 0.1 * kept["steps"])

    network.register_forward_hook(anneal)
    return network


def counter_of_warm_up() -> nn.Module:
    """A dropout that begins after some steps, later than the first round, by a plain attribute."""

    def forward(self, x):
        self.steps += self.training
        return self.layers(dropout(x, 0.5, self.training and self.steps > 7))

    return made(forward, steps=0)


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

    def forward(self, x):
        self.calls += 1
        self.log.append(x.norm().item())
        return self.layers(x)

    return made(forward, calls=0, log=[])


def last_features() -> nn.Module:
    """The last features as an attribute, to look at, with their graph."""

    def forward(self, x):
        self.features = self.first(x)
        return self.last(torch.relu(self.features))

    return made(forward)


def hidden_state() -> nn.Module:
    """A hidden state that is carried from one training batch to the next."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x) + self.state)
        if self.training:
            self.state = hidden.mean(0).detach()
        return self.last(hidden)

    return made(forward, state=torch.zeros(6, dtype=torch.float64))


# What is drawn.


def dropout_of_own_generator() -> nn.Module:
    """Dropout by a torch.Generator of the network's own."""

    def forward(self, x):
        if self.training:
            x = x * torch.bernoulli(torch.full_like(x, 0.7), generator=self.source)
        return self.layers(x)

    return made(forward, source=torch.Generator().manual_seed(3))


def noise_of_own_numpy() -> nn.Module:
    """Noise by a generator of numpy of the network's own."""

    def forward(self, x):
        if self.training:
            x = x + torch.from_numpy(self.source.normal(size=tuple(x.shape)))
        return self.layers(x)

    return made(forward, source=np.random.default_rng(3))


def noise_of_torch() -> nn.Module:
    """Noise of torch's generator in training."""
    return made(lambda self, x: self.layers(x + torch.randn_like(x) if self.training else x))


def noise_of_numpy() -> nn.Module:
    """Noise of numpy's generator in training."""
    return made(lambda self, x: self.layers(x + np.random.normal() if self.training else x))


def noise_of_random() -> nn.Module:
    """A factor of Python's generator in training."""
    return made(lambda self, x: self.layers(x * random.uniform(0.5, 1.5) if self.training else x))
