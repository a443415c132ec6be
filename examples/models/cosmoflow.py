"""A three-dimensional network in the manner of CosmoFlow (arXiv 1808.04728): cosmological parameters from a cube."""

import torch
from torch import Tensor, nn

__all__ = ["CosmoFlow", "cosmoflow", "sample"]


class CosmoFlow(nn.Module):
    """Convolutions that halve the cube until two cells a side are left, then three layers of a regression."""

    def __init__(self, size: int = 128, channels: int = 4, width: int = 16, targets: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        out = width
        while size > 2:
            layers += [nn.Conv3d(channels, out, 3, padding=1), nn.LeakyReLU(), nn.MaxPool3d(2)]
            channels, out, size = out, min(2 * out, 16 * width), size // 2
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(channels * size**3, 128),
            nn.LeakyReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 64),
            nn.LeakyReLU(),
            nn.Dropout(0.5),
            nn.Linear(64, targets),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def cosmoflow(size: int = 128, width: int = 16) -> CosmoFlow:
    return CosmoFlow(size, width=width)


def sample(batch: int = 1, size: int = 128) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, size, size, size),)
