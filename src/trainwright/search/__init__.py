"""Who proposes: searchers are pure functions from a view of the study to configurations."""

from trainwright.search.bayes.forest_searcher import ForestSearcher
from trainwright.search.bayes.gp_searcher import GaussianProcessSearcher
from trainwright.search.default import DefaultSearcher
from trainwright.search.evolution import EvolutionSearcher
from trainwright.search.grid import GridSearcher
from trainwright.search.quasirandom import QuasiRandomSearcher, RandomSearcher
from trainwright.search.searcher import Searcher
from trainwright.search.view import SearchView

__all__ = [
    "DefaultSearcher",
    "EvolutionSearcher",
    "ForestSearcher",
    "GaussianProcessSearcher",
    "GridSearcher",
    "QuasiRandomSearcher",
    "RandomSearcher",
    "SearchView",
    "Searcher",
]
