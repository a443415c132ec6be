"""Choosing: the way from a library to one ensemble, as settings that a study file or a command line gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.front import Front
from trainwright.ensemble.greedy import BudgetedGreedy
from trainwright.ensemble.library import Library
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.report import Report
from trainwright.ensemble.rules import RULES
from trainwright.errors import EnsembleError, closest

__all__ = ["Choice", "Choosing"]

_PICKS = ("best", "knee", "fallback")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What was chosen, and from what."""

    library: Library  # after `library_top`
    front: Front
    ensemble: Ensemble
    report: Report
    cost_limit: float | None  # seconds per row that `cost_factor` came to
    dropped_rows: Mapping[str, int] = field(default_factory=dict)

    def scores(self, split: str) -> dict[str, float]:
        """Return the metric on a split, and the accuracy of classes: `single_test_accuracy`, `ensemble_test_...`.

        Empty if the members left no such rows.
        """
        if any(split not in model.members[0].splits for model in (self.front.single_best, self.ensemble)):
            return {}
        names = {self.front.metric, *(("accuracy",) if self.ensemble.output == "classes" else ())}
        return {
            f"{who}_{split}_{name}": model.score(split, name)
            for name in sorted(names)
            for who, model in (("single", self.front.single_best), ("ensemble", self.ensemble))
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Choosing:
    """Select at most `max_members` of the best `library_top` models by `metric` on the rows of `split`, and pick one.

    `cost_factor` allows so many times the seconds of the single best model. A split "calibration" that the members
    left calibrates the pick. The rows of `test_split` judge, and choose nothing. Raises `EnsembleError` for settings
    that are out of range.
    """

    metric: str | None = None  # None: the likelihood that fits the predictions
    split: str = "selection"
    test_split: str = "test"
    max_members: int = 8
    library_top: int = 200
    budget_seconds: float | None = None
    budget_bytes: float | None = None
    cost_factor: float | None = None
    rule: str | None = None
    pick: str = "best"
    common_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("max_members", "library_top"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise EnsembleError(f"{name}: got {value!r}; allowed: a whole number >= 1")
        for name in ("budget_seconds", "budget_bytes", "cost_factor"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise EnsembleError(f"{name}: got {value!r}; allowed: a number > 0")
        for name in ("split", "test_split"):
            if not isinstance(getattr(self, name), str):
                raise EnsembleError(f"{name}: got {getattr(self, name)!r}; allowed: a name")
        for name, known in (("metric", tuple(METRICS)), ("rule", tuple(RULES)), ("pick", _PICKS)):
            value = getattr(self, name)
            if value not in known and not (value is None and name != "pick"):
                raise EnsembleError(f"{name}: got {value!r}; allowed: {', '.join(known)}{closest(str(value), known)}")
        if not isinstance(self.common_rows, bool):
            raise EnsembleError(f"common_rows: got {self.common_rows!r}; allowed: true, false")

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "[ensemble]") -> "Choosing":
        """Return the settings of a table; errors name `where` it is."""
        names = [one.name for one in fields(cls)]
        for name in table:
            if name not in names:
                raise EnsembleError(f"{where}: {name!r} is unknown; allowed: {', '.join(names)}{closest(name, names)}")
        try:
            return cls(**table)
        except EnsembleError as error:
            raise EnsembleError(f"{where} {error}") from None

    def choose(self, library: Library) -> Choice:
        """Return the ensemble that these settings choose from a library."""
        dropped = dict(library.dropped_rows)
        strategy = BudgetedGreedy(
            max_members=self.max_members, budget_seconds=self.budget_seconds, budget_bytes=self.budget_bytes
        )
        library = library.top(self.library_top, self.metric, self.split)
        front = library.select(strategy, self.metric, self.split)
        cost = front.single_best.cost_seconds
        limit = None if self.cost_factor is None or cost is None else self.cost_factor * cost
        chosen = front.pick(self.pick, max_seconds=limit)
        if self.rule is not None:
            chosen = chosen.with_rule(self.rule, self.split)
        if "calibration" in chosen.members[0].splits:
            chosen = chosen.calibrated()
        report = chosen.report(self.test_split, selection=self.split)
        return Choice(
            library=library, front=front, ensemble=chosen, report=report, cost_limit=limit, dropped_rows=dropped
        )
