"""U-Net (Ronneberger et al., arXiv 1505.04597), padded so that sizes stay; each level down goes to its level up."""

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["UNet", "sample", "unet"]


def twice(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """`levels` halvings and as many doublings; `width` channels at full size, doubled at each level."""

    def __init__(self, channels: int = 1, classes: int = 2, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.first = twice(channels, width)
        self.down = nn.ModuleList(twice(a, b) for a, b in pairwise(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(pairwise(widths))))
        self.up = nn.ModuleList(twice(2 * a, a) for a in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        y = levels.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            y = up(torch.cat([levels.pop(), grow(y)], dim=1))
        return self.head(y)


def unet(channels: int = 1, classes: int = 2, width: int = 64, levels: int = 4) -> UNet:
    return UNet(channels, classes, width, levels)


def sample(batch: int = 2, size: int = 256) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 1, size, size),)
