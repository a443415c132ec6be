"""A plain network of fully connected layers."""

import torch
from torch import Tensor, nn

__all__ = ["mlp", "sample"]


def mlp(
    inputs: int = 784, width: int = 1024, layers: int = 4, classes: int = 10, dropout: float = 0.0
) -> nn.Sequential:
    found: list[nn.Module] = []
    for _ in range(layers):
        found += [nn.Linear(inputs, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        inputs = width
    return nn.Sequential(*found, nn.Linear(inputs, classes))


def sample(batch: int = 64, inputs: int = 784) -> tuple[Tensor, ...]:
    return (torch.randn(batch, inputs),)
