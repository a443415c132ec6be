"""One search of one problem by one searcher, with simulated workers, and what its evaluations come to.

With several workers so many evaluations are always under way: each takes a normal(60, 15) s drawn by (seed, order of
its start), at least 1 s, and the worker that is first free asks next. All searchers meet the same durations.
"""

import heapq
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from benchmarks.peers.client import Peer
from benchmarks.peers.columns import Column
from benchmarks.search.cells import Cell, Key
from benchmarks.search.measures import incumbents
from numpy.typing import NDArray

__all__ = ["Problem", "curve", "search"]

Array = NDArray[np.float64]


class Problem(Protocol):
    """What can be searched: a table of finished trainings, or a function."""

    @property
    def name(self) -> str:
        """Its name, unique."""

    @property
    def family(self) -> str:
        """The set that it belongs to."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its parameters."""

    @property
    def digest(self) -> str:
        """A hash of what its losses are."""

    @property
    def size(self) -> int | None:
        """Number of configurations, None if infinite."""

    def place(self, proposal: Sequence[float]) -> Any:
        """Return what is remembered of a proposal: JSON, equal for equal configurations."""

    def show(self, seed: int, place: Any, repeat: int) -> float:
        """Give the loss that one evaluation shows."""

    def regret(self, places: Sequence[Any]) -> Array:
        """Regret, normalised: 0 is the best, 1 the median."""


def search(peer: Peer, problem: Problem, key: Key, evaluations: int) -> Cell:
    """Search one problem with an opened peer."""
    durations = np.maximum(1.0, np.random.default_rng(key.seed).normal(60.0, 15.0, evaluations)).tolist()
    places: list[Any] = []
    seen: dict[Any, int] = {}
    running: list[tuple[float, int, int, Any]] = []  # end, order of its start, token, place
    now = seconds = 0.0
    started = 0
    while len(places) < evaluations:
        free = min(key.workers - len(running), evaluations - started)
        if free > 0:
            tokens, proposals, spent = peer.ask(free)
            seconds += spent
            for token, proposal in zip(tokens, proposals, strict=True):
                heapq.heappush(running, (now + durations[started], started, token, problem.place(proposal)))
                started += 1
        now, _, token, place = heapq.heappop(running)
        repeat = seen[place] = seen.get(place, -1) + 1
        places.append(place)
        seconds += peer.tell([token], [problem.show(key.seed, place, repeat)])
    return Cell(key, tuple(places), round(1e3 * seconds / evaluations, 4))


def curve(problem: Problem, cell: Cell, evaluations: int) -> Array:
    """Regret of the incumbent after each evaluation, in the order in which they ended."""
    places = cell.rows[:evaluations]
    seen: dict[Any, int] = {}
    losses = np.empty(len(places))
    for position, place in enumerate(places):
        repeat = seen[place] = seen.get(place, -1) + 1
        losses[position] = problem.show(cell.key.seed, place, repeat)
    return problem.regret([places[best] for best in incumbents(losses)])
