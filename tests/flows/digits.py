"""What files of users have for digits: some of the examples, a network, and data that do not fit."""

DIGITS = """
import functools
import numpy as np, torch
from torch import nn
import roundweave as rw

@functools.cache
def digits(): return rw.find_source("digits").load(0, 1)
def some(rows): return digits().train.read(np.array(rows))
def only(rows): return rw.Dataset(some(rows), scaling=digits().scaling)
def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))
def smoothed(outputs, targets): return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
def halved(inputs): return inputs / 2

def empty(): return torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64)
def small(): return torch.zeros(4, 1, 7, 7), torch.arange(4)
def more(): return torch.zeros(12, 1, 8, 8), torch.arange(12)
def quantities(): return torch.zeros(4, 1, 8, 8), torch.zeros(4)

"""
