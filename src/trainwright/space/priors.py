"""Priors: laws of the unit column of a number, truncated to it, where good values are expected.

Both are laws of the unit u in [0, 1], after the log if the parameter has one: `Normal(0.5, 0.125)` on
`Float(1e-5, 1e-1, log=True)` is centred on 1e-3 with a standard deviation of half a decade.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainwright.errors import SpaceError
from trainwright.space.axes import Array
from trainwright.validators import check, number

__all__ = ["Beta", "Normal", "Prior", "prior_from_json"]


@dataclass(frozen=True)
class Normal:
    """The normal law with `mean` in [0, 1] and standard deviation `sd` > 0 on the unit column, truncated to [0, 1]."""

    mean: float
    sd: float

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the settings make no law."""
        # A place on the unit column: 0 is the parameter's low, 1 its high.
        check(self.mean, number(minimum=0, maximum=1), f"{name}: Normal.mean", SpaceError)
        check(self.sd, number(above=0), f"{name}: Normal.sd", SpaceError)

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
            check(value, number(above=0), f"{name}: Beta.{shape}", SpaceError)

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
