"""Regularised evolution: mutates the winner of a tournament among the youngest (Real et al., arXiv 1802.01548)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trainwright.aliases import Array, Places
from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.candidates import fill_gaps, make_legal, moves_of
from trainwright.search.quasirandom import draw_spread
from trainwright.search.searcher import draw_new, propose, propose_default
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.space.configuration import Configuration
from trainwright.validators import integer, optional

__all__ = ["EvolutionSearcher"]


_STEP = 0.1  # standard deviation of a numeric mutation, in units
_BROOD = 16  # mutants made at once, of which the first legal new one is taken
_TRIES = 4  # broods before a random configuration is taken


@dataclass(frozen=True, kw_only=True, slots=True)
class EvolutionSearcher(Settings, error=SearchError):
    """Change one active parameter of the best of `tournament` trials drawn from the `population` youngest results.

    Age decides who leaves, not loss, so a lucky noisy result does not breed for ever. One objective; O(population) an
    ask.
    """

    population: Annotated[int, integer(minimum=1)] = 100  # completed trials of greatest number that may breed
    tournament: Annotated[int, integer(minimum=1)] = 10  # of them are drawn, with replacement, and the best breeds
    initial: Annotated[int | None, optional(integer(minimum=1))] = (
        None  # results before the first mutation; None = 2 * columns + 1
    )

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: a spread design first, then mutants."""
        if view.objectives > 1:
            raise SearchError(
                f"EvolutionSearcher handles one objective, the study has {view.objectives}; use ForestSearcher"
            )
        # Only the youngest results may breed: age decides who leaves, not loss.
        results = np.flatnonzero(view.complete & ~view.failed)
        first = 2 * view.space.dimension + 1 if self.initial is None else self.initial
        youngest = np.argsort(view.numbers[results])[-self.population :]
        parents = results[youngest] if len(results) >= first else results[:0]
        taken: set[bytes] = set()
        return [self._mutate_winner(view, parents, number, taken) for number in numbers]

    def _mutate_winner(self, view: SearchView, parents: Places, number: int, taken: set[bytes]) -> Configuration:
        opened = propose_default(view, number, taken, searcher="evolution")
        if opened is not None:
            return opened
        if not len(parents):
            return propose(view, draw_spread(view, number, taken), number, searcher="evolution", design="halton")
        generator = rng(view.seed, "mutate", number)
        drawn = parents[generator.integers(len(parents), size=self.tournament)]
        # Tournament: fewer broken bounds first, then the lower loss.
        broken = (view.outcomes[drawn] > view.bounds).sum(axis=1)  # a bound first, the loss second
        parent = drawn[np.lexsort((view.losses[drawn, 0], broken))[0]]
        # Most mutants are new; in a nearly exhausted neighbourhood a few broods are tried before chance.
        for _ in range(_TRIES):
            rows = _mutate_parent(view, generator, view.rows[parent])
            for row, key in zip(rows, view.space.row_keys(rows), strict=True):
                if key not in view.tried and key not in taken:
                    taken.add(key)
                    return propose(view, row, number, searcher="evolution", parent=int(view.numbers[parent]))
        return propose(view, draw_new(view, number, taken, "last"), number, searcher="evolution")


def _mutate_parent(view: SearchView, generator: np.random.Generator, parent: Array) -> Array:
    """Return legal rows that differ from `parent` in one active column and in what that brings to life."""
    space = view.space
    active = np.flatnonzero(~np.isnan(parent))
    # One active column each: inactive ones change nothing, and several at once are no small step.
    chosen = active[generator.integers(len(active), size=_BROOD)]
    latent = fill_gaps(space, np.tile(parent, (_BROOD, 1)), generator)
    steps, others = generator.standard_normal(_BROOD) * _STEP, generator.random(_BROOD)
    rows = np.arange(_BROOD)
    latent[rows, chosen] = moves_of(view).change(latent[rows, chosen], chosen, steps, others)
    return make_legal(space, latent, generator)
