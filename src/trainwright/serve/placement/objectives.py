"""Objectives of a placement: rows a second, rows a second within a latency, or the latency at a given rate."""

import re
from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ServeConfigError
from trainwright.settings import Settings
from trainwright.validators import number, optional

__all__ = ["P99", "Objective", "Throughput", "objective_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput(Settings, error=ServeConfigError):
    """Most rows a second: at saturation, or with 99 of 100 requests answered within `slo_ms` if that is given."""

    slo_ms: Annotated[float | None, optional(number(above=0)), "that 99 of 100 requests stay within"] = None
    rows: Annotated[int, number(above=0), "of a request; plays no part at saturation"] = 1

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return "throughput" if self.slo_ms is None else f"throughput@{self.slo_ms:g}"


@dataclass(frozen=True, slots=True)
class P99(Settings, error=ServeConfigError):
    """Least latency that 99 of 100 requests stay within, at `rate` requests a second of `rows` rows, sent open-loop."""

    rate: Annotated[float, number(above=0), "requests a second"]
    rows: Annotated[int, number(above=0), "of a request"] = 1

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"p99@{self.rate:g}"


Objective = Throughput | P99

_FORM = re.compile(r"(throughput|p99)(?:@(.+))?")


def objective_of(text: str) -> Objective:
    """Return what "throughput", "throughput@SLO_MS" or "p99@RATE" mean."""
    found = _FORM.fullmatch(text.strip())
    if found is None or (found[1] == "p99" and found[2] is None):
        raise ServeConfigError(
            f"objective: got {text!r}; allowed: throughput, throughput@SLO_MS such as throughput@50, or p99@RATE such "
            "as p99@200 (requests a second)"
        )
    if found[2] is None:
        return Throughput()
    try:
        number = float(found[2])
    except ValueError:
        raise ServeConfigError(f"objective: got {text!r}; allowed: a number after the @") from None
    return P99(number) if found[1] == "p99" else Throughput(slo_ms=number)
