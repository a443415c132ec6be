"""Residual networks for images (He et al., arXiv 1512.03385): ResNet-18, 50 and 152."""

import torch
from torch import Tensor, nn

__all__ = ["ResNet", "resnet18", "resnet50", "resnet152", "sample"]


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    widening = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the last is four times as wide."""

    widening = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.widening * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.relu(y + self.shortcut(x))


def shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A stem, four groups of blocks and a classifier."""

    def __init__(
        self, block: type[Basic] | type[Bottleneck], blocks: tuple[int, ...], classes: int = 1000, width: int = 64
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        groups, channels = [], width
        for i, count in enumerate(blocks):
            group = []
            for j in range(count):
                group.append(block(channels, width * 2**i, stride=2 if i and not j else 1))
                channels = block.widening * width * 2**i
            groups.append(nn.Sequential(*group))
        self.groups = nn.Sequential(*groups)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.groups(self.stem(x))).flatten(1))


def resnet18(classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet(Basic, (2, 2, 2, 2), classes, width)


def resnet50(classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, width)


def resnet152(classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet(Bottleneck, (3, 8, 36, 3), classes, width)


def sample(batch: int = 8, size: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
