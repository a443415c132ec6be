"""Where good values are expected: priors on the unit column of a number, truncated to it.

Both are laws of the unit u in [0, 1], after the log if the parameter has one: `Normal(0.5, 0.125)` on
`Float(1e-5, 1e-1, log=True)` is centred on 1e-3 with a standard deviation of half a decade.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainwright.errors import SpaceError
from trainwright.space.axes import Array
from trainwright.space.canonical import is_number

__all__ = ["Beta", "Normal", "Prior", "prior_from_json"]


@dataclass(frozen=True)
class Normal:
    """The normal law with `mean` in [0, 1] and standard deviation `sd` > 0 on the unit column, truncated to [0, 1]."""

    mean: float
    sd: float

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the settings make no law."""
        if not is_number(self.mean) or not 0 <= self.mean <= 1:
            raise SpaceError(
                f"{name}: the mean of a Normal prior is a place on the unit column, from 0 (low) to 1 (high), "
                f"got {self.mean!r}; give for example Normal(0.5, 0.2)"
            )
        if not is_number(self.sd) or not 0 < self.sd < float("inf"):
            raise SpaceError(f"{name}: the sd of a Normal prior must be a finite number > 0, got {self.sd!r}")

    def quantile(self, p: Array) -> Array:
        """Return the units below which a share p of the draws lies."""
        from scipy.special import ndtr, ndtri

        # The shares of the untruncated law below 0 and below 1; draws lie between them.
        below, above = ndtr(-self.mean / self.sd), ndtr((1 - self.mean) / self.sd)
        units: Array = self.mean + self.sd * ndtri(below + p * (above - below))
        return np.minimum(np.maximum(units, 0.0), 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the prior as data."""
        return {"normal": [float(self.mean), float(self.sd)]}


@dataclass(frozen=True)
class Beta:
    """The beta law with shapes `a` > 0 and `b` > 0 on the unit column."""

    a: float
    b: float

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the settings make no law."""
        for shape, value in asdict(self).items():
            if not is_number(value) or not 0 < value < float("inf"):
                raise SpaceError(f"{name}: {shape} of a Beta prior must be a finite number > 0, got {value!r}")

    def quantile(self, p: Array) -> Array:
        """Return the units below which a share p of the draws lies."""
        from scipy.special import betaincinv

        units: Array = betaincinv(self.a, self.b, p)
        return units

    def to_json(self) -> dict[str, Any]:
        """Return the prior as data."""
        return {"beta": [float(self.a), float(self.b)]}


Prior = Normal | Beta


def prior_from_json(document: Any) -> Prior:
    """Return the prior that `to_json` wrote."""
    laws: dict[str, type[Normal | Beta]] = {"normal": Normal, "beta": Beta}
    if isinstance(document, dict) and len(document) == 1:
        [(law, numbers)] = document.items()
        if law in laws and isinstance(numbers, list | tuple) and len(numbers) == 2:
            return laws[law](*numbers)
    raise SpaceError(f'prior {document!r} cannot be read; write {{"normal": [mean, sd]}} or {{"beta": [a, b]}}')
