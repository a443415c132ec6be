"""Who proposes: searchers are pure functions from a view of the study to configurations."""

from trainwright.search._searcher import Learner, Searcher, draw_new, opening, propose
from trainwright.search.default import DefaultSearcher
from trainwright.search.evolution import EvolutionSearcher
from trainwright.search.forest import ForestSearcher
from trainwright.search.gain import ExpectedGain
from trainwright.search.gp import GaussianProcessSearcher
from trainwright.search.grid import GridSearcher
from trainwright.search.optuna import OptunaSearcher
from trainwright.search.quasirandom import QuasiRandomSearcher
from trainwright.search.random import RandomSearcher
from trainwright.search.view import View

__all__ = [
    "DefaultSearcher",
    "EvolutionSearcher",
    "ExpectedGain",
    "ForestSearcher",
    "GaussianProcessSearcher",
    "GridSearcher",
    "Learner",
    "OptunaSearcher",
    "QuasiRandomSearcher",
    "RandomSearcher",
    "Searcher",
    "View",
    "draw_new",
    "opening",
    "propose",
]
