"""A network of Inception blocks (Szegedy et al., arXiv 1409.4842), with batch norm, without auxiliary heads."""

import torch
from torch import Tensor, nn

__all__ = ["Inception", "inception", "sample"]


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class Mixed(nn.Module):
    """Four branches whose results lie side by side in the channels."""

    def __init__(self, channels: int, one: int, three: int, five: int, pooled: int) -> None:
        super().__init__()
        self.one = convolution(channels, one, 1)
        self.three = nn.Sequential(convolution(channels, three // 2, 1), convolution(three // 2, three, 3))
        self.five = nn.Sequential(convolution(channels, five // 2, 1), convolution(five // 2, five, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), convolution(channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


class Inception(nn.Module):
    """A stem, nine mixed blocks in three groups, and a classifier; `width` scales all channels."""

    def __init__(self, classes: int = 1000, width: int = 16) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            convolution(3, 4 * w, 7, 2),
            nn.MaxPool2d(3, 2, padding=1),
            convolution(4 * w, 12 * w, 3),
            nn.MaxPool2d(3, 2, padding=1),
        )
        shapes = [
            (4, 8, 2, 2),
            (8, 12, 6, 4),
            None,
            (12, 14, 2, 4),
            (10, 14, 4, 4),
            (8, 16, 4, 4),
            (16, 20, 8, 8),
            None,
            (16, 20, 8, 8),
            (24, 24, 8, 8),
        ]
        layers: list[nn.Module] = []
        channels = 12 * w
        for shape in shapes:
            if shape is None:
                layers.append(nn.MaxPool2d(3, 2, padding=1))
            else:
                layers.append(Mixed(channels, *(w * part for part in shape)))
                channels = w * sum(shape)
        self.mixed = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(nn.Dropout(0.4), nn.Linear(channels, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.mixed(self.stem(x))).flatten(1))


def inception(classes: int = 1000, width: int = 16) -> Inception:
    return Inception(classes, width)


def sample(batch: int = 8, size: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
