"""Where an acquisition is asked: draws from the space, mutations and crossovers of good rows, and their neighbours.

All functions return settled, legal rows of the space; they work on whole matrices and know nothing of a model.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.space import Space

__all__ = ["candidates", "neighbours"]

Array = NDArray[np.float64]

_MUTATE = 0.1  # standard deviation of a numeric mutation, in units
_STEPS = (0.05, 0.2)  # those of the local steps, in turn


def candidates(space: Space, generator: np.random.Generator, good: Array, count: int) -> Array:
    """Return about `count` rows: half of them draws, a quarter mutations, a quarter crossovers of `good` rows.

    `good` is ordered, best first: the first 10 mutate, the first 20 cross. What is illegal is left out.
    """
    quarter = count // 4
    drawn = space.sample(generator, count - 2 * quarter)
    latent = space.latent(generator, 2 * quarter)  # values for columns that a parent lacks
    parents = good[generator.integers(min(10, len(good)), size=quarter)]
    chosen = generator.random(parents.shape) < 2.0 / space.dimension
    chosen[np.arange(quarter), generator.integers(space.dimension, size=quarter)] = True
    mutants = _filled(parents, latent[:quarter])
    mutants = np.where(chosen, _moved(space, generator, mutants, _MUTATE), mutants)
    pairs = good[generator.integers(min(20, len(good)), size=(2, quarter))]
    crossed = np.where(generator.random(parents.shape) < 0.5, pairs[0], pairs[1])
    bred = space.settle(np.concatenate([mutants, _filled(crossed, latent[quarter:])]))
    return np.concatenate([drawn, bred[space.legal(bred)]])


def neighbours(space: Space, generator: np.random.Generator, rows: Array, most: int) -> Array:
    """Return rows that differ from one of `rows` in one column: numeric steps, and the other codes of each choice.

    Eight steps per numeric column, fewer where that makes more than `most` rows.
    """
    latent = space.latent(generator, len(rows))
    base = _filled(rows, latent)
    found = []
    numeric = [c for c, column in enumerate(space.columns) if column.kind == "unit"]
    if numeric:
        steps = max(1, min(8, most // (len(rows) * len(numeric))))
        changed = np.repeat(base, steps * len(numeric), axis=0)
        columns = np.tile(np.repeat(numeric, steps), len(rows))
        at = np.arange(len(changed))
        sizes = np.resize(_STEPS, len(changed))[:, None]
        changed[at, columns] = _moved(space, generator, changed, sizes)[at, columns]
        found.append(changed)
    for c, column in enumerate(space.columns):
        if column.kind == "choice" and column.points is not None:
            changed = np.repeat(base, column.points, axis=0)
            changed[:, c] = np.tile(np.arange(column.points), len(rows))
            found.append(changed)
    near = space.settle(np.concatenate(found))
    return near[space.legal(near)]


def _filled(rows: Array, latent: Array) -> Array:
    filled: Array = np.where(np.isnan(rows), latent, rows)
    return filled


def _moved(space: Space, generator: np.random.Generator, rows: Array, size: float | Array) -> Array:
    """Return rows with every column changed: a normal step, at least one grid point; another code for a choice."""
    least = np.array([1.0 / c.points if c.points else 0.0 for c in space.columns])
    step = size * generator.standard_normal(rows.shape)
    moved: Array = rows + np.copysign(np.maximum(np.abs(step), least), step)
    moved = np.where((moved < 0.0) | (moved > 1.0), 2.0 * rows - moved, moved)  # back in, from a bound
    for c, column in enumerate(space.columns):
        if column.kind == "choice" and column.points is not None:
            if column.points > 1:
                other = generator.integers(1, column.points, size=len(rows))
                moved[:, c] = (rows[:, c] + other) % column.points
            else:
                moved[:, c] = rows[:, c]
    return moved
