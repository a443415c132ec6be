"""Densely connected networks (Huang et al., arXiv 1608.06993): every layer reads all earlier ones of its block."""

import torch
from torch import Tensor, nn

__all__ = ["DenseNet", "densenet121", "densenet_small", "sample"]


class Dense(nn.Module):
    """Norm, 1x1 convolution, norm, 3x3 convolution; the result is appended to the input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], dim=1)


class DenseNet(nn.Module):
    """A stem, dense blocks with a halving transition between them, and a classifier."""

    def __init__(self, blocks: tuple[int, ...], growth: int = 32, classes: int = 1000) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        for i, count in enumerate(blocks):
            for _ in range(count):
                layers.append(Dense(channels, growth))
                channels += growth
            if i + 1 < len(blocks):
                layers += [
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


def densenet121(classes: int = 1000) -> DenseNet:
    return DenseNet((6, 12, 24, 16), classes=classes)


def densenet_small(classes: int = 10) -> DenseNet:
    return DenseNet((3, 4), growth=8, classes=classes)


def sample(batch: int = 8, size: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
