"""A searcher of your own: every other proposal is a step from the best so far, the others are random."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import trainwright as tw
from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search import SearchView
from trainwright.search.searcher import draw_new, propose

__all__ = ["HillClimber"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HillClimber:
    """Take normal steps of deviation `step`, in units of a column's range; redraw each choice with chance `step`."""

    step: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.step <= 1.0:
            raise SearchError(f"HillClimber.step: got {self.step!r}; allowed: a number above 0 and up to 1")

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[tw.Configuration]:
        """Return a new configuration for each number: a function of settings, view and number alone."""
        taken: set[bytes] = set()
        return [propose(view, self._find_row(view, number, taken), number, searcher="hill") for number in numbers]

    def _find_row(self, view: SearchView, number: int, taken: set[bytes]) -> NDArray[np.float64]:
        """Return a legal row that is new: the first of 100 steps from the best one, else a draw."""
        if number % 2 and view.count_results:
            space, generator = view.space, rng(view.seed, "hill", number)
            best = view.rows[np.argmin(view.losses[:, 0])]
            fresh = space.latent(generator, 100)  # for inactive parameters, which the step may bring to life
            start = np.where(np.isnan(best), fresh, best)
            moved = np.clip(start + self.step * generator.standard_normal(start.shape), 0.0, 1.0)
            redrawn = np.where(generator.random(start.shape) < self.step, fresh, start)
            numeric = np.array([column.kind == "unit" for column in space.columns])
            steps = space.settle(np.where(numeric, moved, redrawn))
            steps = steps[space.legal(steps)]
            for row, key in zip(steps, space.row_keys(steps), strict=True):
                if key not in view.tried and key not in taken:
                    taken.add(key)
                    return np.asarray(row)
        return draw_new(view, number, taken, "hill")


if __name__ == "__main__":
    space = tw.Space(x=tw.Float(-2, 2), y=tw.Float(-2, 2))
    study = tw.Study(space, objectives="min loss", seed=0, searcher=HillClimber())
    for _ in range(60):
        configuration = study.ask()
        study.tell(configuration, loss=(configuration["x"] - 1) ** 2 + (configuration["y"] + 0.5) ** 2)
    print(f"best loss {study.best.values['loss']:.4f} in {len(study.trials)} trials")
