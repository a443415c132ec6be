"""The way from a library to one ensemble, the same for study files, commands, reports and pages.

The settings that a study's ensemble was chosen with are kept beside it, in `ensemble.json`: every other door starts
from them, so that all of them name the same members.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.ensemble.decision import MEASURES
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.front import PICKS, Front
from trainwright.ensemble.greedy import BudgetedGreedy
from trainwright.ensemble.library import Library
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.report import Report
from trainwright.ensemble.rules import RULES
from trainwright.errors import EnsembleError, closest
from trainwright.files import read_json, write_text
from trainwright.ledger import State

__all__ = ["SETTINGS_FILE", "ChosenEnsemble", "EnsembleSettings", "KeptSettings"]

SETTINGS_FILE = "ensemble.json"


@dataclass(frozen=True, kw_only=True)
class ChosenEnsemble:
    """What was chosen, and from what."""

    settings: "EnsembleSettings"
    library: Library  # after `library_top`
    front: Front
    ensemble: Ensemble
    models: int  # in the library before `library_top`
    cost_limit: float | None  # seconds per row that `cost_factor` came to
    dropped_rows: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def report(self) -> Report:
        """What the ensemble is and how good, judged by the settings' test rows."""
        return self.ensemble.report(self.settings.test_split, selection=self.settings.split)

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
class EnsembleSettings:
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
    pick: str = "best"  # "best": of least loss; "fallback": the simplest that cross-validation finds as good
    decide_by: str | None = None  # of two classes: the measure that the threshold between them is chosen by
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
        for name, known in (
            ("metric", tuple(METRICS)),
            ("rule", tuple(RULES)),
            ("pick", PICKS),
            ("decide_by", tuple(MEASURES)),
        ):
            value = getattr(self, name)
            if value not in known and not (value is None and name != "pick"):
                raise EnsembleError(f"{name}: got {value!r}; allowed: {', '.join(known)}{closest(str(value), known)}")
        if not isinstance(self.common_rows, bool):
            raise EnsembleError(f"common_rows: got {self.common_rows!r}; allowed: true, false")

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "[ensemble]") -> "EnsembleSettings":
        """Return the settings of a table; errors name `where` it is."""
        names = [one.name for one in fields(cls)]
        for name in table:
            if name not in names:
                raise EnsembleError(f"{where}: {name!r} is unknown; allowed: {', '.join(names)}{closest(name, names)}")
        try:
            return cls(**table)
        except EnsembleError as error:
            raise EnsembleError(f"{where} {error}") from None

    def open_library(self, directory: str | Path, state: State | None = None, *, trust: bool = False) -> Library:
        """Return the library of the study in a folder, or of a state of it, as these settings want its rows."""
        if state is None:
            return Library.open(directory, common_rows=self.common_rows, trust=trust)
        return Library.of(state, directory, common_rows=self.common_rows, trust=trust)

    def choose(self, library: Library) -> ChosenEnsemble:
        """Return the ensemble that these settings choose from a library: top, select, pick, combine, calibrate."""
        models, dropped = len(library.members), dict(library.dropped_rows)
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
        if self.decide_by is not None:
            chosen = chosen.decided(self.decide_by)
        return ChosenEnsemble(
            settings=self,
            library=library,
            front=front,
            ensemble=chosen,
            models=models,
            cost_limit=limit,
            dropped_rows=dropped,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptSettings:
    """The settings that a study's ensemble was chosen with, and whether a run's [ensemble] stage chose it."""

    settings: EnsembleSettings
    by_run: bool = False  # then an export and a summary follow from them, and a command does not replace them

    @classmethod
    def read(cls, directory: str | Path) -> "KeptSettings | None":
        """Return what is kept in a study's folder; None if nothing has chosen an ensemble there."""
        path = Path(directory) / SETTINGS_FILE
        if not path.exists():
            return None
        allowed = "what `trainwright run` or `trainwright ensemble` wrote; remove it"
        told = read_json(path, "settings", allowed=allowed, error=EnsembleError)
        if not isinstance(told, dict) or not isinstance(told.get("settings"), dict):
            raise EnsembleError(f"settings {str(path)!r}: they are no settings of an ensemble; allowed: {allowed}")
        return cls(settings=EnsembleSettings.from_table(told["settings"], str(path)), by_run=told.get("by_run") is True)

    @classmethod
    def settings_of(cls, directory: str | Path) -> EnsembleSettings:
        """Return the settings that every door to a study's ensemble starts from: those kept, or the defaults."""
        kept = cls.read(directory)
        return EnsembleSettings() if kept is None else kept.settings

    def write(self, directory: str | Path) -> None:
        """Keep the settings in a study's folder."""
        told = {"settings": asdict(self.settings), "by_run": self.by_run}
        write_text(Path(directory) / SETTINGS_FILE, "settings", json.dumps(told, indent=1) + "\n", error=EnsembleError)
