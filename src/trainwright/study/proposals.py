"""New trials: a claimed number and what the searcher proposes for it, for a worker of a large team ahead of need."""

from collections.abc import Callable
from dataclasses import dataclass

from trainwright.errors import SpaceExhausted
from trainwright.search import Searcher
from trainwright.search import View as SearchView
from trainwright.space import Configuration
from trainwright.study.book import Book

__all__ = ["Proposals"]

_LARGE = 8
"""From so many other workers on, proposals are made while trials run: a few results are always missing then."""
_STALE = 4
_STALE_SHARE = 0.02
"""A proposal made ahead is made again if more than so many new results, or this share of all, have come since."""


@dataclass(frozen=True, slots=True)
class _Ready:
    number: int
    configuration: Configuration
    results: int


class Proposals:
    """Makes proposals with one searcher; `worker` is whether this process is one of a team."""

    def __init__(
        self, book: Book, view: SearchView, searcher: Searcher, *, worker: bool, say: Callable[[str], None]
    ) -> None:
        self.exhausted = False
        self._book = book
        self._view = view
        self._searcher = searcher
        self._worker = worker
        self._say = say
        self._ready: _Ready | None = None

    def next(self, limit: int | None) -> tuple[int, Configuration] | None:
        """Return a new trial's number, now ours, and its configuration; None if budget or space allow none."""
        ready, self._ready = self._ready, None
        if ready is not None and ready.number not in self._book.state.trials:
            news = self._view.count_results - ready.results
            if news <= max(_STALE, _STALE_SHARE * ready.results):
                return ready.number, ready.configuration
            return self._ask(ready.number)
        number = self._claim(limit)
        return None if number is None else self._ask(number)

    def prepare(self, limit: int | None) -> None:
        """Make the next proposal before it is needed, if the team is large and numbers for all are left."""
        others = self._book.claims.others
        if self._ready is not None or self.exhausted or not self._worker or others < _LARGE:
            return
        if limit is not None and limit - len(self._book.state.trials) <= 2 * (others + 1):
            return  # near the end a number that waits for us would keep another worker idle
        number = self._claim(limit)
        proposal = None if number is None else self._ask(number)
        if proposal is not None:
            self._ready = _Ready(*proposal, self._view.count_results)

    def close(self) -> None:
        """Give back the number of a proposal that nobody needs any more."""
        if self._ready is not None:
            self._book.claims.release([self._ready.number])
            self._ready = None

    def _claim(self, limit: int | None) -> int | None:
        return self._book.claims.number(limit, among=2 * (self._book.claims.others + 1) if self._worker else 1)

    def _ask(self, number: int) -> tuple[int, Configuration] | None:
        try:
            (configuration,) = self._searcher.ask(self._view, [number])
        except SpaceExhausted as end:
            self._book.claims.release([number])
            self.exhausted = True
            self._say(f"every configuration of the space has been tried: {end}")
            return None
        return number, configuration
