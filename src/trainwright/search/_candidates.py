"""Where an acquisition is asked: draws from the space, mutations and crossovers of good rows, and their neighbours.

All functions return settled, legal rows of the space; they work on whole matrices and know nothing of a model.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.space import Space

__all__ = ["candidates", "neighbours"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]

_MUTATION = 0.1  # standard deviation of a numeric mutation, in units
_NEAR, _FAR = 0.05, 0.2  # those of local steps, in turn
_STEPS = 8  # of each numeric column in a local search


def candidates(space: Space, generator: np.random.Generator, good: Array, count: int) -> Array:
    """Return about `count` rows: half of them draws, a quarter mutations, a quarter crossovers of `good` rows.

    `good` is ordered, best first: the first 10 mutate, each column with probability 2 / d, the first 20 cross. What is
    illegal is left out.
    """
    quarter, d = count // 4, space.dimension
    drawn = space.sample(generator, count - 2 * quarter)
    mutants = good[generator.integers(min(10, len(good)), size=quarter)]
    pairs = good[generator.integers(min(20, len(good)), size=(2, quarter))]
    crossed = np.where(generator.random((quarter, d)) < 0.5, pairs[0], pairs[1])
    bred = _filled(space, generator, np.concatenate([mutants, crossed]))
    chosen = generator.random((quarter, d)) < 2.0 / d
    chosen[np.arange(quarter), generator.integers(d, size=quarter)] = True  # at least one
    at, columns = np.nonzero(chosen)
    bred[at, columns] = _changed(space, generator, bred[at, columns], columns, _MUTATION)
    bred = space.settle(bred)
    return np.concatenate([drawn, bred[space.legal(bred)]])


def neighbours(space: Space, generator: np.random.Generator, rows: Array, most: int) -> Array:
    """Return rows that differ from one of `rows` in one column: numeric steps, and the other codes of each choice.

    Eight steps per numeric column, or as many as keep the rows below `most`.
    """
    codes = [column.points or 0 if column.kind == "choice" else 0 for column in space.columns]
    numeric = np.flatnonzero(np.array(codes) == 0)
    steps = max(1, min(_STEPS, most // (len(rows) * max(1, len(numeric)))))
    columns = np.concatenate([np.repeat(numeric, steps), np.repeat(np.arange(len(codes)), codes)])
    base = _filled(space, generator, rows)
    values, moves = base[:, columns], steps * len(numeric)
    sizes = np.where(np.arange(moves) % 2, _FAR, _NEAR)
    values[:, :moves] = _changed(space, generator, values[:, :moves], columns[:moves], sizes)
    values[:, moves:] = np.concatenate([np.arange(0.0), *map(np.arange, codes)])
    near = np.repeat(base[:, None, :], len(columns), axis=1)
    near[:, np.arange(len(columns)), columns] = values
    found = space.settle(near.reshape(-1, space.dimension))
    return found[space.legal(found)]


def _filled(space: Space, generator: np.random.Generator, rows: Array) -> Array:
    """Return rows with a drawn value where a parameter is inactive: a change elsewhere may bring it to life."""
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows.copy()
    filled: Array = np.where(gaps, space.latent(generator, len(rows)), rows)
    return filled


def _changed(
    space: Space, generator: np.random.Generator, values: Array, columns: Places, size: float | Array
) -> Array:
    """Return another value for each: a normal step of at least one grid point for numbers, another code for choices."""
    points = np.array([column.points or 0 for column in space.columns])[columns]
    choice = np.array([column.kind == "choice" for column in space.columns])[columns]
    step = size * generator.standard_normal(values.shape)
    least = np.where(points > 0, 1.0 / np.maximum(points, 1), 0.0)
    moved = values + np.copysign(np.maximum(np.abs(step), least), step)
    moved = np.where((moved < 0.0) | (moved > 1.0), 2.0 * values - moved, moved)  # back in, from a bound
    if choice.any():
        other = generator.integers(1, np.maximum(points, 2), size=values.shape)
        moved = np.where(choice, (values + other) % np.maximum(points, 1), moved)
    changed: Array = moved
    return changed
