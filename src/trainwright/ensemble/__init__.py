"""Ensembles: what trials leave behind, selection of members under budgets, and held-out scores."""

from trainwright.ensemble.combine import Mean, Rule, Weighted, combine
from trainwright.ensemble.cost import Cost
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.entry import Member, Split
from trainwright.ensemble.front import Front, Point, Strategy
from trainwright.ensemble.greedy import BudgetedGreedy, Selection, Step
from trainwright.ensemble.library import Library
from trainwright.ensemble.metrics import METRICS, Metric, accuracy, cross_entropy, squared_error
from trainwright.ensemble.offer import leave

__all__ = [
    "METRICS",
    "BudgetedGreedy",
    "Cost",
    "Ensemble",
    "Front",
    "Library",
    "Mean",
    "Member",
    "Metric",
    "Point",
    "Rule",
    "Selection",
    "Split",
    "Step",
    "Strategy",
    "Weighted",
    "accuracy",
    "combine",
    "cross_entropy",
    "leave",
    "squared_error",
]
