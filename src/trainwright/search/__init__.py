"""Who proposes: searchers are pure functions from a view of the study to configurations."""

from trainwright.search._searcher import Searcher
from trainwright.search.random import RandomSearcher
from trainwright.search.view import View

__all__ = ["RandomSearcher", "Searcher", "View"]
