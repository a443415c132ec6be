"""Generates candidates for an acquisition function: random draws, mutations, crossovers and neighbours of good rows."""

import numpy as np

from trainwright.aliases import Array, Places
from trainwright.search.view import SearchView
from trainwright.space import Space

__all__ = ["Moves", "fill_gaps", "make_legal", "moves_of"]


_MUTATION = 0.1  # standard deviation of a numeric mutation, in units
_NEAR, _FAR = 0.05, 0.2  # those of local steps, in turn
_EVEN = 5  # one in so many candidates knows of no prior
_STEPS = 8  # of each numeric column in a local search


def fill_gaps(space: Space, rows: Array, generator: np.random.Generator) -> Array:
    """Return rows [count, columns] with a drawn value wherever there is none, as in inactive parameters."""
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows.copy()
    filled: Array = np.where(gaps, space.latent(generator, len(rows)), rows)
    return filled


def make_legal(space: Space, rows: Array, generator: np.random.Generator) -> Array:
    """Return settled rows of changed ones [count, columns], without those that break a requirement.

    Every move ends here: a change may bring a parameter to life, and then its value is drawn.
    """
    settled = space.settle(fill_gaps(space, rows, generator))
    return settled[space.legal(settled)] if space.requirements else settled


class Moves:
    """The moves in one space, over whole matrices; all of them return settled, legal rows and know no model."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._points = np.array([column.points or 0 for column in space.columns])  # 0 where continuous
        self._choice = np.array([column.kind == "choice" for column in space.columns])
        self._least = np.where(self._points > 0, 1.0 / np.maximum(self._points, 1), 0.0)  # one grid point
        self._numeric = np.flatnonzero(~self._choice)
        codes = np.where(self._choice, self._points, 0)
        self._code_columns = np.repeat(np.arange(len(codes)), codes)
        self._codes = np.concatenate([np.arange(code) for code in codes])

    def candidates(self, generator: np.random.Generator, good: Array, count: int) -> Array:
        """Return about `count` rows: half of them draws, a quarter mutations, a quarter crossovers of `good` rows.

        Where the space has priors, a fifth of `count` are even draws, which know of none. `good` is ordered, best
        first: the first 10 mutate, each column with probability 2 / d, the first 20 cross. What is illegal is left out.
        """
        # Half draws from the space, a quarter mutations, a quarter crossovers of good rows.
        quarter, d = count // 4, self.space.dimension
        even = count // _EVEN if self.space.has_priors else 0
        drawn = self.space.sample(generator, count - 2 * quarter - even)
        mutants = good[generator.integers(min(10, len(good)), size=quarter)]
        pairs = good[generator.integers(min(20, len(good)), size=(2, quarter))]
        crossed = np.where(generator.random((quarter, d)) < 0.5, pairs[0], pairs[1])
        # Filled before they mutate, so that a mutation may bring a parameter to life and change it.
        bred = fill_gaps(self.space, np.concatenate([mutants, crossed]), generator)
        chosen = generator.random((quarter, d)) < 2.0 / d
        chosen[np.arange(quarter), generator.integers(d, size=quarter)] = True  # at least one
        at, columns = np.nonzero(chosen)
        bred[at, columns] = self._changed(generator, bred[at, columns], columns, _MUTATION)
        if even:
            evenly = generator.random((even, d))
            evenly = np.where(self._choice, np.floor(evenly * self._points), evenly)
            drawn = np.concatenate([drawn, make_legal(self.space, evenly, generator)])
        return np.concatenate([drawn, make_legal(self.space, bred, generator)])

    def neighbours(self, generator: np.random.Generator, rows: Array, most: int) -> Array:
        """Return rows that differ from one of `rows` in one column: numeric steps, and all codes of each choice.

        Eight steps per numeric column, or as many as keep their rows below `most`.
        """
        # Numeric columns alternate small and large steps; choices take all their codes.
        steps = max(1, min(_STEPS, most // (len(rows) * max(1, len(self._numeric)))))
        columns = np.concatenate([np.repeat(self._numeric, steps), self._code_columns])
        base, moves = fill_gaps(self.space, rows, generator), steps * len(self._numeric)
        values = base[:, columns]
        sizes = np.where(np.arange(moves) % 2, _FAR, _NEAR)
        values[:, :moves] = self._changed(generator, values[:, :moves], columns[:moves], sizes)
        values[:, moves:] = self._codes
        near = np.repeat(base[:, None, :], len(columns), axis=1)
        near[:, np.arange(len(columns)), columns] = values
        return make_legal(self.space, near.reshape(-1, self.space.dimension), generator)

    def _changed(self, generator: np.random.Generator, values: Array, columns: Places, size: float | Array) -> Array:
        """Return other values: for numbers a normal step of about `size`, for choices another code."""
        steps = size * generator.standard_normal(values.shape)
        others = generator.random(values.shape) if self._choice[columns].any() else np.zeros(values.shape)
        return self.change(values, columns, steps, others)

    def change(self, values: Array, columns: Places, steps: Array, others: Array) -> Array:
        """Return other values of columns: numbers moved by `steps`, choices by `others` in [0, 1) of their codes."""
        # A step is at least one grid point.
        changed = values + np.copysign(np.maximum(np.abs(steps), self._least[columns]), steps)
        changed = np.where((changed < 0.0) | (changed > 1.0), 2.0 * values - changed, changed)  # back in, from a bound
        points = np.maximum(self._points[columns], 1)
        return np.where(self._choice[columns], (values + 1.0 + np.floor(others * (points - 1))) % points, changed)


def moves_of(view: SearchView) -> Moves:
    """Return the moves in a view's space, made once."""
    moves = view.memo.get("moves")
    if not isinstance(moves, Moves):
        moves = view.memo["moves"] = Moves(view.space)
    return moves
