"""Ensembles: what trials leave behind, selection of members under budgets, and held-out scores."""

from trainwright.ensemble.combine.calibration import (
    Calibration,
    Judged,
    Reliability,
    calibrate,
    expected_calibration_error,
    judged,
    reliability,
)
from trainwright.ensemble.combine.coverage import Coverage, RiskCoverage, auroc, coverage, crps, risk_coverage
from trainwright.ensemble.combine.decision import Decision, decide
from trainwright.ensemble.combine.means import Geometric, Mean, Vote, Weighted
from trainwright.ensemble.combine.median import Median
from trainwright.ensemble.combine.mixture import Mixture
from trainwright.ensemble.combine.rule import Combined, Rule, Slots, combine
from trainwright.ensemble.combine.rules import RULES, rule_of
from trainwright.ensemble.combine.stacking import Stacking
from trainwright.ensemble.combine.uncertainty import Uncertainty, uncertainty_of
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.ensemble_report import Report
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, EnsembleSettings, KeptSettings
from trainwright.ensemble.library.cost import Cost
from trainwright.ensemble.library.library import Library
from trainwright.ensemble.library.member import Member, Split
from trainwright.ensemble.library.retention import Retention
from trainwright.ensemble.library.save_member import leave
from trainwright.ensemble.metrics import METRICS, Metric, accuracy, cross_entropy, normal_nll, squared_error
from trainwright.ensemble.selection.front import Front, Point, Strategy
from trainwright.ensemble.selection.greedy import BudgetedGreedy, Selection, Step
from trainwright.ensemble.selection.protection import Checked, Protection

__all__ = [
    "METRICS",
    "RULES",
    "BudgetedGreedy",
    "Calibration",
    "Checked",
    "ChosenEnsemble",
    "Combined",
    "Cost",
    "Coverage",
    "Decision",
    "Ensemble",
    "EnsembleSettings",
    "Front",
    "Geometric",
    "Judged",
    "KeptSettings",
    "Library",
    "Mean",
    "Median",
    "Member",
    "Metric",
    "Mixture",
    "Point",
    "Protection",
    "Reliability",
    "Report",
    "Retention",
    "RiskCoverage",
    "Rule",
    "Selection",
    "Slots",
    "Split",
    "Stacking",
    "Step",
    "Strategy",
    "Uncertainty",
    "Vote",
    "Weighted",
    "accuracy",
    "auroc",
    "calibrate",
    "combine",
    "coverage",
    "cross_entropy",
    "crps",
    "decide",
    "expected_calibration_error",
    "judged",
    "leave",
    "normal_nll",
    "reliability",
    "risk_coverage",
    "rule_of",
    "squared_error",
    "uncertainty_of",
]
