"""The searcher of a study that names none: Gaussian processes while little is known of few columns, then the forest.

The rule is what `benchmarks/search` bears out, and a function of what the study has seen, so that a resumed study and
its workers choose alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.search.forest import ForestSearcher
from trainwright.search.gp import GaussianProcessSearcher
from trainwright.search.view import View
from trainwright.space import Configuration

__all__ = ["DefaultSearcher"]

_COLUMNS = 20  # up to which a process searches well
_ROWS = 200  # told, open and asked for: beyond, an ask of a process takes too long


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultSearcher:
    """Ask `GaussianProcessSearcher` where it is the better one, else `ForestSearcher`, both with their defaults.

    The process has: one objective without bounds, at most 20 columns, at most 200 trials told, open and asked for, no
    intermediate values, and one driver rather than a team of workers. Both begin with the same trials.
    """

    def ask(self, view: View, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number."""
        searcher = GaussianProcessSearcher() if suits_a_process(view, len(numbers)) else ForestSearcher()
        return searcher.ask(view, numbers)

    def learn(self, view: View) -> None:
        """Let the forest learn, if that is who will be asked."""
        if not suits_a_process(view, 1):
            ForestSearcher().learn(view)


def suits_a_process(view: View, wanted: int) -> bool:
    """Return whether a process is asked for `wanted` more trials."""
    return (
        view.space.dimension <= _COLUMNS
        and view.count + len(view.pending) + wanted <= _ROWS
        and len(view.bounds) == 1
        and not view.partial
        and view.slot is None
    )
