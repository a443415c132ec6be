"""VGG16 (Simonyan and Zisserman, arXiv 1409.1556): thirteen 3x3 convolutions and three wide layers."""

import torch
from torch import Tensor, nn

__all__ = ["VGG", "sample", "vgg16"]


class VGG(nn.Module):
    """Convolutions in groups that end in a pooling, then fully connected layers."""

    def __init__(self, groups: tuple[tuple[int, int], ...], classes: int = 1000, hidden: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, width in groups:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(49 * channels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def vgg16(classes: int = 1000, width: int = 64, hidden: int = 4096) -> VGG:
    return VGG(((2, width), (2, 2 * width), (3, 4 * width), (3, 8 * width), (3, 8 * width)), classes, hidden)


def sample(batch: int = 8, size: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
