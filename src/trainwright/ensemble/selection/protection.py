"""Protects against selection overfitting: optimism by cross-validation, and the one-standard-error rule.

Whoever picks the best of many on the same rows picks luck too. Each whole procedure is repeated on four fifths of the
selection rows and scored on the last fifth; what it loses there is its optimism.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.library.out_of_fold import draw_folds
from trainwright.ensemble.metrics import Array, Metric
from trainwright.ensemble.selection.candidates import Candidates, Picks, Scorer, make_scorer
from trainwright.ensemble.selection.greedy import BudgetedGreedy, rank_top

__all__ = ["ProcedureEstimate", "Protection", "cross_validate", "protect"]

Procedure = Callable[[Candidates, Scorer], Picks]

FEW_ROWS = 1000
_FEWEST_PER_FOLD = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcedureEstimate:
    """One procedure of choice: its loss where it chose, out of fold, and the difference, all means per row."""

    loss: float  # on the selection rows, where the choice was made
    optimism: float  # mean over folds of (loss on the fold left out - loss on the folds chosen on)
    behind: float  # out-of-fold loss minus that of the procedure for which it is least
    standard_error: float  # of `behind`, over rows

    @property
    def corrected(self) -> float:
        """The loss on the selection rows plus the optimism: what to expect on new rows."""
        return self.loss + self.optimism


@dataclass(frozen=True, kw_only=True, slots=True)
class Protection:
    """What cross-validation says of the choices "single best", "top-k" and "greedy", from simple to complex."""

    checked: Mapping[str, ProcedureEstimate]
    chosen: str  # the simplest whose `behind` is within its standard error
    reason: str
    picks: Picks  # of the chosen one, on all selection rows
    warnings: tuple[str, ...]


def protect(
    candidates: Candidates, metric: Metric, strategy: BudgetedGreedy, *, folds: int = 5, repeats: int = 5, seed: int = 0
) -> Protection:
    """Cross-validate greedy selection, single best and top-k, all within its limits, and choose among them.

    With fewer than 50 rows a fold, or a class that a fold may lack, greedy selection is left out of the choice.
    """
    # From simple to complex: the first within one standard error of the best is chosen.
    procedures: dict[str, Procedure] = {
        "single best": _best_of_top(1, strategy),
        "top-k": _best_of_top(strategy.max_members, strategy),
        "greedy": lambda chosen, scorer: strategy.run(chosen, scorer).picks,
    }
    warnings = _warn_of_rows(candidates, folds)
    # With so few rows a fold the estimate for greedy selection says nothing.
    if len(warnings) > 1 or len(candidates.targets) // folds < _FEWEST_PER_FOLD:
        del procedures["greedy"]
    scorer = make_scorer(candidates, metric)
    every = {name: found(candidates, scorer) for name, found in procedures.items()}
    outside = {
        name: cross_validate(candidates, metric, found, folds=folds, repeats=repeats, seed=seed)
        for name, found in procedures.items()
    }
    # Differences are taken row by row: the same hard rows cost every procedure, which cancels.
    least = min(outside, key=lambda name: float(outside[name][0].mean()))
    checked = {}
    for name, (rows, optimism) in outside.items():
        behind = rows - outside[least][0]
        # A metric of all rows has one value for a fold, so its folds are what varies.
        varied = len(behind) if metric.per_row else folds
        checked[name] = ProcedureEstimate(
            loss=scorer.loss(every[name]),
            optimism=optimism,
            behind=float(behind.mean()),
            standard_error=float(behind.std(ddof=1) / math.sqrt(varied)) if len(behind) > 1 else 0.0,
        )
    # The one-standard-error rule (Breiman et al., 1984).
    chosen = next(name for name, one in checked.items() if one.behind <= one.standard_error)
    content = checked[chosen]
    reason = (
        f"{chosen} has the least loss on rows left out"
        if chosen == least
        else f"{chosen} is simpler and {content.behind:.2g} behind {least} out of fold, within one standard error "
        f"({content.standard_error:.2g})"
    )
    return Protection(checked=checked, chosen=chosen, reason=reason, picks=every[chosen], warnings=warnings)


def cross_validate(
    candidates: Candidates, metric: Metric, procedure: Procedure, *, folds: int = 5, repeats: int = 5, seed: int = 0
) -> tuple[Array, float]:
    """Return the out-of-fold loss of each row [N], mean over repeats, and the optimism of a procedure.

    Folds are drawn by `seed`, for classes with equal shares of each class.
    """
    rows = len(candidates.targets)
    folds = min(folds, rows)
    lost, gaps = np.zeros(rows), []
    for repeat in range(repeats):
        fold = draw_folds(candidates.targets, folds, seed, repeat)
        for one in range(folds):
            # The whole procedure is repeated on the inner rows, its choice included.
            inner, outer = np.flatnonzero(fold != one), np.flatnonzero(fold == one)
            if not len(outer) or not len(inner):
                continue
            inside = candidates.subset(inner)
            scorer = make_scorer(inside, metric)
            picks = procedure(inside, scorer)
            # The rows left out played no part in the choice, so their loss is unbiased.
            left = make_scorer(candidates.subset(outer), metric).per_row(picks)
            # Each row is left out once in every repeat.
            lost[outer] += left / repeats
            gaps.append(float(left.mean()) - scorer.loss(picks))
    return lost, float(np.mean(gaps)) if gaps else 0.0


def _best_of_top(largest: int | None, strategy: BudgetedGreedy) -> Procedure:
    def procedure(candidates: Candidates, scorer: Scorer) -> Picks:
        ranked = rank_top(candidates, scorer, largest)
        found = [(loss, picks) for picks, loss in ranked if strategy.admits(candidates, picks)]
        if found:
            # Of losses that differ by rounding alone, the one with fewer members.
            return min(found, key=lambda one: (round(one[0], 12), len(one[1])))[1]
        singles = [(index,) for index in range(len(candidates)) if strategy.admits(candidates, (index,))]
        return min(singles, key=scorer.loss)

    return procedure


def _warn_of_rows(candidates: Candidates, folds: int) -> tuple[str, ...]:
    rows, found = len(candidates.targets), []
    if rows < FEW_ROWS:
        found.append(f"only {rows} rows to select on: losses on them are optimistic, by an amount that varies")
    if candidates.targets.dtype.kind in "iu":
        counts = np.bincount(candidates.targets)
        rare = [label for label, count in enumerate(counts.tolist()) if count < folds]
        if rare:
            found.append(f"class {rare[0]} has {counts[rare[0]]} rows to select on, fewer than the {folds} folds")
    return tuple(found)
