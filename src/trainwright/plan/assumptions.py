"""Assumptions: what the oracle believes where neither profile nor cluster was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.errors import InputError

__all__ = ["Assumptions"]


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Constants of the model that a calibration replaces; none of them belongs to one model."""

    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"conv": 0.45, "linear": 0.6, "attention": 0.45, "fp8": 0.6}
    )
    """Share of the device's peak by kind of layer, where the cluster has not measured it; 0.5 for other kinds.

    "fp8" is of linear layers at a byte an element.
    """
    bandwidth: float = 0.8
    """Share of the device's memory bandwidth that layers reach."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """Share of a measured layer's time, by kind, that stays however far it is divided: f (c + (1 - c) / p)."""
    asynchronous: Mapping[str, float] = field(default_factory=dict)
    """Share of the exchanges inside blocks that runs beside computation, by axis: {"tensor": 1} for tensor parallelism
    that sends a part of a product while the next is computed (Wang et al., ASPLOS 2023)."""
    fragmentation: float = 1.0
    """Reserved bytes over those that blocks of the allocator round to, >= 1."""

    def __post_init__(self) -> None:
        if not self.fragmentation >= 1:
            raise InputError(f"Assumptions.fragmentation: got {self.fragmentation!r}; allowed: a number >= 1")
        shares = {"bandwidth": self.bandwidth}
        shares |= {f"efficiency[{kind!r}]": share for kind, share in self.efficiency.items()}
        for name, share in shares.items():
            if not 0 < share <= 1:
                raise InputError(f"Assumptions.{name}: got {share!r}; allowed: a number above 0, at most 1")
        for field_name in ("whole", "asynchronous"):
            for key, share in getattr(self, field_name).items():
                if not 0 <= share <= 1:
                    raise InputError(f"Assumptions.{field_name}[{key!r}]: got {share!r}; allowed: a number from 0 to 1")
