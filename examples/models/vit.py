"""Vision transformers (Dosovitskiy et al., arXiv 2010.11929), with attention written out product by product."""

import torch
from torch import Tensor, nn

__all__ = ["ViT", "sample", "vit_base", "vit_tiny"]


class Attention(nn.Module):
    """Self-attention of all patches with all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        query, key, value = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) * shape[-1] ** -0.5
        y = scores.softmax(dim=-1) @ value
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """Attention and a feed-forward part, each added to its input."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token and positions, equal layers, a norm and a classifier."""

    def __init__(
        self, layers: int, heads: int, width: int, *, size: int = 224, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads, 4 * width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.expand(patches.shape[0], -1, -1)
        y = self.layers(torch.cat([token, patches], dim=1) + self.positions)
        return self.head(self.norm(y)[:, 0])


def vit_base(size: int = 224, classes: int = 1000) -> ViT:
    return ViT(12, 12, 768, size=size, classes=classes)


def vit_tiny(size: int = 32, classes: int = 10) -> ViT:
    return ViT(4, 4, 64, size=size, patch=4, classes=classes)


def sample(batch: int = 8, size: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)
