"""Chooses one ensemble from a library, the same for study files, commands, reports and pages.

The settings that a study's ensemble was chosen with are kept beside it, in `ensemble.json`: every other door starts
from them, so that all of them name the same members.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from trainwright.ensemble.combine.rules import find_rule
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.ensemble_report import EnsembleReport
from trainwright.ensemble.library.library import Library
from trainwright.ensemble.metrics import ALIASES, METRICS
from trainwright.ensemble.selection.front import PICKS, Front
from trainwright.ensemble.selection.greedy import BudgetedGreedy
from trainwright.errors import EnsembleError
from trainwright.files import read_json, write_text
from trainwright.settings import Settings
from trainwright.validators import integer, number, one_of, optional, text

__all__ = ["SETTINGS_FILE", "ChosenEnsemble", "EnsembleSettings", "StoredSettings"]

SETTINGS_FILE = "ensemble.json"
_ALPHA = 0.1
_FEWEST_ROWS = 9  # that can promise it


@dataclass(frozen=True, kw_only=True)
class ChosenEnsemble:
    """What was chosen, and from what."""

    settings: "EnsembleSettings"
    library: Library  # after `library_top`
    front: Front
    ensemble: Ensemble
    models: int  # in the library before `library_top`
    cost_limit: float | None  # seconds per row that `cost_factor` came to

    @cached_property
    def report(self) -> EnsembleReport:
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
class EnsembleSettings(Settings, error=EnsembleError, label=""):
    """How an ensemble is chosen from a library.

    A split "calibration" that the members left calibrates the pick. Raises `EnsembleError` for settings that are out of
    range.
    """

    metric: Annotated[
        str | None,
        optional(one_of(*METRICS, *ALIASES)),
        "loss to select by; default: the likelihood that fits the predictions",
    ] = None
    split: Annotated[str, text(), "rows that members are selected on"] = "selection"
    test_split: Annotated[str, text(), "rows that judge the ensemble, and choose nothing"] = "test"
    max_members: Annotated[
        int | None, optional(integer(minimum=1)), "members of the ensemble at most; default: as many as lower the loss"
    ] = None
    library_top: Annotated[int, integer(minimum=1), "select from so many of the best models"] = 200
    budget_seconds: Annotated[float | None, optional(number(above=0)), "seconds per row that it may take"] = None
    budget_bytes: Annotated[float | None, optional(number(above=0)), "bytes of parameters that it may have"] = None
    cost_factor: Annotated[
        float | None, optional(number(above=0)), "times the seconds of the single best model that it may take"
    ] = None
    rule: Annotated[
        str | None,
        optional(text("the name of a combination rule")),
        "combination rule; None: the weighted mean or mixture; auto: its mean with a linear head if better out of fold",
    ] = "auto"
    alpha: Annotated[
        float | None,
        optional(number(above=0, below=1)),
        "share of rows whose truth sets and intervals may miss; default: 0.1, if the calibration rows allow it",
    ] = None
    pick: Annotated[
        str,
        one_of(*PICKS),
        "point of the front: best (of least loss) or fallback (the simplest that cross-validation finds as good)",
    ] = "best"

    def check_together(self) -> None:
        """Refuse a rule that is neither built in nor installed."""
        if self.rule not in (None, "auto"):
            find_rule(self.rule)

    def choose(self, library: Library) -> ChosenEnsemble:
        """Return the ensemble chosen from a library: top, select (`BudgetedGreedy.run`), pick, combine, calibrate."""
        models = len(library.members)
        strategy = BudgetedGreedy(
            max_members=self.max_members, budget_seconds=self.budget_seconds, budget_bytes=self.budget_bytes
        )
        # Selection reads the best models alone: its cost grows with their number.
        library = library.top(self.library_top, self.metric, self.split)
        front = library.select(strategy, self.metric, self.split)
        cost = front.single_best.cost_seconds
        limit = None if self.cost_factor is None or cost is None else self.cost_factor * cost
        chosen = front.pick(self.pick, max_seconds=limit)
        if self.rule is not None:
            chosen = chosen.with_rule(self.rule, self.split)
        # Calibration changes no choice above: it reads rows of its own.
        if "calibration" in chosen.members[0].splits:
            chosen = chosen.calibrated()
            if self.alpha is not None or len(chosen.members[0].targets("calibration")) >= _FEWEST_ROWS:
                chosen = chosen.conformal(_ALPHA if self.alpha is None else self.alpha)
        return ChosenEnsemble(
            settings=self,
            library=library,
            front=front,
            ensemble=chosen,
            models=models,
            cost_limit=limit,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSettings:
    """The settings that a study's ensemble was chosen with, and whether a run's [ensemble] stage chose it."""

    settings: EnsembleSettings
    by_run: bool = False  # then an export and a summary follow from them, and a command does not replace them

    @classmethod
    def read(cls, directory: str | Path) -> "StoredSettings | None":
        """Return what is kept in a study's folder; None if nothing has chosen an ensemble there."""
        path = Path(directory) / SETTINGS_FILE
        if not path.exists():
            return None
        allowed = "what `trainwright run` or `trainwright ensemble` wrote; remove it"
        content = read_json(path, "settings", allowed=allowed, error=EnsembleError)
        if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
            raise EnsembleError(f"settings {str(path)!r}: they are no settings of an ensemble; allowed: {allowed}")
        return cls(
            settings=EnsembleSettings.from_table(content["settings"], str(path)), by_run=content.get("by_run") is True
        )

    @classmethod
    def settings_of(cls, directory: str | Path) -> EnsembleSettings:
        """Return the settings that every door to a study's ensemble starts from: those kept, or the defaults."""
        stored = cls.read(directory)
        return EnsembleSettings() if stored is None else stored.settings

    def write(self, directory: str | Path) -> None:
        """Keep the settings in a study's folder."""
        content = {"settings": asdict(self.settings), "by_run": self.by_run}
        write_text(
            Path(directory) / SETTINGS_FILE, "settings", json.dumps(content, indent=1) + "\n", error=EnsembleError
        )
