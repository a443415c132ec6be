"""Ensembles: what trials leave behind, selection of members under budgets, and held-out scores."""

from trainwright.ensemble.combine.rules import CombinationRule
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.ensemble_settings import EnsembleSettings
from trainwright.ensemble.library.library import Library
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.library.out_of_fold import out_of_fold
from trainwright.ensemble.library.save_member import leave
from trainwright.ensemble.selection.front import Front
from trainwright.ensemble.selection.greedy import BudgetedGreedy

__all__ = [
    "BudgetedGreedy",
    "CombinationRule",
    "Ensemble",
    "EnsembleSettings",
    "Front",
    "Library",
    "Member",
    "leave",
    "out_of_fold",
]
