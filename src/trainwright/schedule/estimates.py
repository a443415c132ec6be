"""What policies believe of speed and of restarts: priors, replaced by what has been measured."""

from bisect import insort
from dataclasses import dataclass, field

from trainwright.errors import ScheduleError

__all__ = ["Estimates"]

_ENOUGH = 3  # measurements, before they replace a prior


@dataclass(slots=True)
class Estimates:
    """Speed with `m` times the devices is `m**alpha`, a restart takes `restart_seconds`, until enough was measured.

    Then they are the median of the measured speed-ups at that `m`, and the 0.9-quantile of measured restarts onto so
    many devices (or of all, while there are few of them). In a study the start of a new trial counts as one.
    """

    alpha: float = 0.9
    restart_seconds: float = 30.0
    _speedups: dict[float, list[float]] = field(default_factory=dict)
    _restarts: dict[int, list[float]] = field(default_factory=dict)
    _epochs: list[float] = field(default_factory=list)  # seconds of an epoch of new trials, the latest

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1.2:
            raise ScheduleError(f"alpha: got {self.alpha!r}; allowed: a number above 0, at most 1.2")
        if not self.restart_seconds >= 0:
            raise ScheduleError(f"restart_seconds: got {self.restart_seconds!r}; allowed: a number >= 0")

    def speedup(self, ratio: float) -> float:
        """Return how many times as fast a trial is on `ratio` times its devices."""
        measured = self._speedups.get(ratio, ())
        return measured[len(measured) // 2] if len(measured) >= _ENOUGH else ratio**self.alpha

    def restart(self, size: int) -> float:
        """Return the seconds that a restart onto `size` devices takes."""
        measured = self._restarts.get(size, ())
        if len(measured) < _ENOUGH:
            measured = self._restarts.get(0, ())
        return measured[len(measured) * 9 // 10] if len(measured) >= _ENOUGH else self.restart_seconds

    def saw_epoch(self, seconds: float) -> None:
        """Note the seconds of an epoch of a trial of the starting size."""
        insort(self._epochs, seconds)
        if len(self._epochs) > 64:
            del self._epochs[0], self._epochs[-1]

    def epoch_seconds(self) -> float | None:
        """Return the median seconds of an epoch at the starting size, None if there was none."""
        return self._epochs[len(self._epochs) // 2] if self._epochs else None

    def saw_speedup(self, ratio: float, speedup: float) -> None:
        """Note that a trial was `speedup` times as fast on `ratio` times the devices."""
        insort(self._speedups.setdefault(ratio, []), speedup)

    def saw_restart(self, size: int, seconds: float) -> None:
        """Note a restart onto `size` devices."""
        insort(self._restarts.setdefault(size, []), seconds)
        insort(self._restarts.setdefault(0, []), seconds)
