"""New trials: a claimed number, and what the searcher proposes for it."""

from collections.abc import Callable

from trainwright.errors import SpaceExhausted
from trainwright.search import Searcher
from trainwright.search import View as SearchView
from trainwright.space import Configuration
from trainwright.study.book import Book

__all__ = ["Proposals"]


class Proposals:
    """Makes proposals with one searcher; `worker` is whether this process is one of a team.

    A proposal is made when it is needed and not while another trial runs: by then about as many results as there are
    workers would have come, and it would be made again.
    """

    def __init__(
        self, book: Book, view: SearchView, searcher: Searcher, *, worker: bool, say: Callable[[str], None]
    ) -> None:
        self.exhausted = False
        self._book = book
        self._view = view
        self._searcher = searcher
        self._worker = worker
        self._say = say

    def next(self, limit: int | None) -> tuple[int, Configuration] | None:
        """Return a new trial's number, now ours, and its configuration; None if budget or space allow none."""
        claims = self._book.claims
        number = claims.number(limit, among=2 * (claims.others + 1) if self._worker else 1)
        if number is None:
            return None
        try:
            (configuration,) = self._searcher.ask(self._view, [number])
        except SpaceExhausted as end:
            claims.release([number])
            self.exhausted = True
            self._say(f"every configuration of the space has been tried: {end}")
            return None
        return number, configuration
