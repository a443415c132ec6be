"""Gears: ensembles of one front, of which the cheaper ones answer while more is asked than the better ones can do.

The idea is that of CascadeServe (arXiv 2406.14424) and Cocktail (NSDI 2022); the policy is our own: down at once, up
again after a while of less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwright.ensemble import Ensemble
from trainwright.errors import ServeConfigError

__all__ = ["Gear", "Gears", "places_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gear:
    """Some members of the deployed ensemble, their weights, and the rows a second that they answer at the objective."""

    members: tuple[int, ...]  # trial numbers
    weights: tuple[float, ...]
    rows_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gears:
    """A table of gears, best first and each faster than the one before, and which one is in. Pure: times are given.

    `arrived` returns the table of the next moment. The rate of arrivals is an average that forgets within
    `memory_seconds`. The gear is the best one that keeps up with it; to a better one than is in it changes only when
    the rate has stayed below `calm` of what that one does for `calm_seconds`.
    """

    gears: tuple[Gear, ...]
    memory_seconds: float = 2.0
    calm: float = 0.8
    calm_seconds: float = 10.0
    now: int = 0  # place of the gear that is in
    rate: float = 0.0  # rows a second
    seen: float = -math.inf  # seconds, when rows last arrived
    calm_since: float = math.inf

    def __post_init__(self) -> None:
        rates = [gear.rows_per_second for gear in self.gears]
        if not rates or any(not rate > 0 for rate in rates) or sorted(set(rates)) != rates:
            told = ", ".join(f"{rate:g}" for rate in rates) or "none"
            raise ServeConfigError(
                f"Gears: got rates {told}; allowed: at least one gear, each with more rows a second than the one before"
            )

    @property
    def gear(self) -> Gear:
        """The gear that is in."""
        return self.gears[self.now]

    def arrived(self, rows: int, now: float) -> "Gears":
        """Return the table after so many rows arrived at `now` seconds."""
        rate = self.rate * math.exp(-(now - self.seen) / self.memory_seconds) + rows / self.memory_seconds
        keeps_up = self._first(rate)
        if keeps_up > self.now:
            return replace(self, now=keeps_up, rate=rate, seen=now, calm_since=math.inf)
        better = self._first(rate / self.calm)
        if better >= self.now:
            return replace(self, rate=rate, seen=now, calm_since=math.inf)
        since = min(self.calm_since, now)
        if now - since < self.calm_seconds:
            return replace(self, rate=rate, seen=now, calm_since=since)
        return replace(self, now=better, rate=rate, seen=now, calm_since=math.inf)

    def _first(self, rate: float) -> int:
        """Return the best gear that does so many rows a second, or the fastest."""
        able = (place for place, gear in enumerate(self.gears) if gear.rows_per_second >= rate)
        return next(able, len(self.gears) - 1)


def places_of(ensemble: Ensemble, trials: Sequence[int], where: str) -> tuple[int, ...]:
    """Return the positions in an ensemble of members by trial number, or raise ServeConfigError for a stranger."""
    places = {member.trial: place for place, member in enumerate(ensemble.members)}
    if strangers := [trial for trial in trials if trial not in places]:
        raise ServeConfigError(
            f"{where}: got member {strangers[0]}; allowed: members of the deployed ensemble, "
            f"{', '.join(map(str, places))}"
        )
    return tuple(places[trial] for trial in trials)
