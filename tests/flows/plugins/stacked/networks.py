"""Networks as their users would write them, in the text of a file."""

NETWORKS = """
import random
import torch
from torch import nn
from torch.nn import functional

class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Linear(32, 3)
    def forward(self, images):
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        return self.head(functional.gelu(self.norm(self.conv2(hidden))).flatten(1))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 3)
    def forward(self, images):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(images.flatten(1))))))

class Frozen(Tied):
    def __init__(self):
        super().__init__()
        self.head.weight.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(0.5))
    def forward(self, images):
        return super().forward(images) * self.scale

class Idle(Tied):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(2, 2)

class Playing(Tied):
    lengths = range(100)
    def forward(self, images):
        return super().forward(images) * (1 + random.random() if len(images) in self.lengths else 1)

class PlayingLater(Playing):
    lengths = [5]

class Branching(Tied):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs if outputs.sum() > 0 else -outputs
"""
