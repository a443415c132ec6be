"""Factories that tests of weights import by name."""

import torch
from torch import nn


def linear(params):
    return nn.Linear(3, params["outputs"])


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        mean, scale = self.inner(x).unbind(1)
        return torch.stack([mean, nn.functional.softplus(scale) + 1e-3], 1)


def pairs(params):
    return Pairs()


def batch():
    return torch.ones(5, 3)


NUMBER = 3
