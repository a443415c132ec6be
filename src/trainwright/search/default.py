"""The default searcher of a study: Gaussian processes while little is known of few columns, then the forest.

Many columns are searched by an evolution strategy and a process together, several objectives by processes and forest in
turn.

The rule is what `benchmarks/search` and `multiobjective` bear out, on the problems that it was chosen on. It is a
function of what the study has seen, so that a resumed study and its workers choose alike. To choose between process and
forest by the rank error at left-out results, study by study, was tried: it asked the process nine times in ten, and
found no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.search.bayes.forest_searcher import ForestSearcher
from trainwright.search.bayes.gp_searcher import GaussianProcessSearcher
from trainwright.search.bayes.wide_searcher import WideSearcher
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["DefaultSearcher"]

_COLUMNS = 20  # up to which a process searches well
_TRIALS = 200  # told, open and asked for: beyond, an ask of a process takes too long
_ROWS = 200  # that the process holds where trials report: more make its questions slower, and found no more


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultSearcher:
    """Ask `GaussianProcessSearcher` or `WideSearcher` where they are the better ones, else `ForestSearcher`.

    The process has: one objective, at most 20 columns, and at most 200 trials told, open and asked for; with
    intermediate values and no constraint it has any number of trials, and holds 200 rows of them. Several objectives
    have process and forest in turn, up to as many trials. The wide search has: one objective without constraints and
    more than 20 columns, most of them numeric. Process and forest begin with the same trials.
    """

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number."""
        return _pick_searcher(view, numbers).ask(view, numbers)

    def learn(self, view: SearchView) -> None:
        """Let the forest learn, if it makes the next proposal."""
        searcher = _pick_searcher(view, [1])  # an odd number: where the two take turns the forest is asked
        if isinstance(searcher, ForestSearcher):
            searcher.learn(view)


def _pick_searcher(view: SearchView, numbers: Sequence[int]) -> GaussianProcessSearcher | ForestSearcher | WideSearcher:
    """Return who is asked for some more trials."""
    few = view.count + len(view.pending) + len(numbers) <= _TRIALS
    if len(view.bounds) > 1:
        # A process needs few results, and the forest's target, dominance, no scale: together they found more than
        # either (`benchmarks/multiobjective/run.py`). Batches take turns too.
        turn = numbers[0] // len(numbers) % 2 if view.objectives > 1 else 0
        suits = few and not view.partial and view.space.dimension <= _COLUMNS
        return GaussianProcessSearcher() if suits and not turn else ForestSearcher()
    if view.space.dimension > _COLUMNS:
        numeric = sum(column.kind != "choice" for column in view.space.columns)
        return WideSearcher() if 2 * numeric > view.space.dimension else ForestSearcher()
    if view.partial:
        return GaussianProcessSearcher(max_rows=_ROWS)
    return GaussianProcessSearcher() if few else ForestSearcher()
