"""Ensembles: what trials leave behind, selection of members under budgets, and held-out scores."""

from trainwright.ensemble.calibration import (
    Calibration,
    Judged,
    Reliability,
    calibrate,
    expected_calibration_error,
    judged,
    reliability,
)
from trainwright.ensemble.combine import Combined, Rule, Slots, combine
from trainwright.ensemble.cost import Cost
from trainwright.ensemble.coverage import Coverage, RiskCoverage, auroc, coverage, crps, risk_coverage
from trainwright.ensemble.decision import Decision, decide
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, EnsembleSettings, KeptSettings
from trainwright.ensemble.entry import Member, Split
from trainwright.ensemble.front import Front, Point, Strategy
from trainwright.ensemble.greedy import BudgetedGreedy, Selection, Step
from trainwright.ensemble.library import Library
from trainwright.ensemble.means import Geometric, Mean, Vote, Weighted
from trainwright.ensemble.median import Median
from trainwright.ensemble.metrics import METRICS, Metric, accuracy, cross_entropy, normal_nll, squared_error
from trainwright.ensemble.mixture import Mixture
from trainwright.ensemble.offer import leave
from trainwright.ensemble.protection import Checked, Protection
from trainwright.ensemble.report import Report
from trainwright.ensemble.retention import Retention
from trainwright.ensemble.rules import RULES, rule_of
from trainwright.ensemble.stacking import Stacking
from trainwright.ensemble.uncertainty import Uncertainty, uncertainty_of

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
