"""Models of each kind, small."""

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels, *, norm=False):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.two = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


def mlp():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def convolutions(*, norm=False):
    """Strides, padding, dilation, a kernel of even size, pooling, a residual block, and a part that is not divided."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        Residual(8, norm=norm),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.AvgPool2d(2, stride=1, padding=1),
        nn.Conv2d(8, 12, 4, padding=(1, 2), bias=False),
        nn.Conv2d(12, 8, 3, dilation=2, padding="same"),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def volumes():
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, 4),
    )


class UNet(nn.Module):
    """Down, up again, and the skipped tensor beside: its output is an image."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        skipped = torch.relu(self.first(x))
        low = torch.relu(self.down(nn.functional.max_pool2d(skipped, 2)))
        return self.last(torch.cat([self.up(low), skipped], 1))
