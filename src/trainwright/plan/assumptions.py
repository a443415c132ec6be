"""Assumptions: what the oracle believes where neither profile nor cluster was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trainwright.errors import InputError
from trainwright.settings import Settings
from trainwright.validators import check, number

__all__ = ["Assumptions"]


@dataclass(frozen=True, kw_only=True)
class Assumptions(Settings, error=InputError):
    """Constants of the model that a calibration replaces; none of them belongs to one model."""

    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"conv": 0.45, "linear": 0.6, "attention": 0.45, "fp8": 0.6}
    )
    """Share of the device's peak by kind of layer, where the cluster has not measured it; 0.5 for other kinds.

    "fp8" is of linear layers at a byte an element.
    """
    bandwidth: Annotated[float, number(above=0, maximum=1)] = 0.8
    """Share of the device's memory bandwidth that layers reach."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """Share of a measured layer's time, by kind, that stays however far it is divided: f (c + (1 - c) / p)."""
    asynchronous: Mapping[str, float] = field(default_factory=dict)
    """Share of the exchanges inside blocks that runs beside computation, by axis: {"tensor": 1} for tensor parallelism
    that sends a part of a product while the next is computed (Wang et al., ASPLOS 2023)."""
    expert_imbalance: Annotated[float, number(minimum=1)] = 1.0
    """Tokens of the rank whose experts get most of them over the mean, where experts are divided."""
    fragmentation: Annotated[float, number(minimum=1)] = 1.0
    """Reserved bytes over those that blocks of the allocator round to, >= 1."""

    def check_together(self) -> None:
        """Refuse shares out of range."""
        for kind, share in self.efficiency.items():
            check(share, number(above=0, maximum=1), f"Assumptions.efficiency[{kind!r}]")
        for name, shares in (("whole", self.whole), ("asynchronous", self.asynchronous)):
            for kind, share in shares.items():
                check(share, number(minimum=0, maximum=1), f"Assumptions.{name}[{kind!r}]")
