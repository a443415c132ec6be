"""Bayesian optimisation with Gaussian processes, best with few trials and below 20 columns.

Expected improvement in its logarithm, so that its gradient does not vanish far from the optimum (Ament et al., arXiv
2310.20708), over the least posterior mean of the told rows, which noise does not fool. Candidates come from the space,
from mutations and crossovers of good rows, and from their neighbours; the continuous columns of the best then climb by
L-BFGS. Pending trials are believed at the posterior mean, which leaves the mean and lowers the deviation around them.
Several objectives have a process each, and every ask its own weights of them (Knowles, IEEE TEVC 10, 2006); every bound
counts by the chance that it is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array, Places
from trainwright.randomness import rng
from trainwright.search.bayes.gaussian_process import Embedding, Posterior, fit_hyperparameters
from trainwright.search.bayes.improvement import ExpectedImprovement
from trainwright.search.bayes.loop import BayesianSearcher, draw_weights, good_rows
from trainwright.search.bayes.targets import make_targets, thin_rows
from trainwright.search.searcher import draw_new, propose
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration
from trainwright.validators import integer, number

__all__ = ["GaussianProcessSearcher", "make_survival"]

_GROWTH, _GROWTHS = 16, 10  # hyperparameters are fitted anew after n / 16 more rows, at most max_rows / 10
_PRIOR = 10.0  # results up to which a prior counts in full or more: its power falls as 10 / n
_LEAST = -14.0  # logarithm of the least density of a prior that counts


class _Known(NamedTuple):
    """What is kept between two questions."""

    state: tuple[int, int, bool]  # of the view, for which it holds
    first: Places  # the rows to which hyperparameters were fitted
    posteriors: list[Posterior]


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianProcessSearcher(BayesianSearcher):
    """Propose where Gaussian processes expect the most improvement.

    Handles conditions, requirements, several objectives, intermediate values (a row for each rung that a trial reached,
    with a column z, asked at z = 1), failures (as the worst result) and pending trials. What is gained counts times the
    priors' density to the power 10 / results (Hvarfner et al., arXiv 2204.11051), divided by the expected seconds to
    the power `cost`; a trial of no known cost, or of zero, counts as a typical one. Where a rule stops trials, the
    chance to go on counts too (see `survival`). An ask costs O(candidates * n^2) for n rows, of which at most
    `max_rows` are kept: all of the highest rungs, below them the best and an even sample.
    """

    name: ClassVar[str] = "gp"

    max_rows: Annotated[int, integer(minimum=20), "rows that the process holds"] = 500
    cost: Annotated[float, number(minimum=0, maximum=1), "power of the seconds that gains are divided by"] = 0.0

    def _ask_surrogate(self, view: SearchView, numbers: Sequence[int], taken: set[bytes]) -> list[Configuration]:
        """Choose one after the other, each believed at its posterior mean before the next."""
        # Several objectives become one by weights that are drawn anew for each batch.
        weights = draw_weights(rng(view.seed, "weights", numbers[0]), view.objectives)
        improvement = self.acquire(view, weights)
        mix = {"weights": weights.tolist()} if view.objectives > 1 else {}
        proposals = []
        for trial in numbers:
            [row] = self._choose(view, improvement, [trial], view.tried, taken)
            if trial % 2 and view.partial and improvement.is_known(row, float(view.progress.min())):
                # Under a rule the same row would be tried for ever; a row of chance may prove the process wrong.
                row = draw_new(view, trial, taken, "beyond")
            improvement.believe_pending(row[None, :])
            proposals.append(propose(view, row, trial, searcher=self.name, **mix))
        return proposals

    def acquire(self, view: SearchView, weights: Array) -> ExpectedImprovement:
        """Return the acquisition function of what a view shows, for a weighted sum of its objectives."""
        embedding = Embedding(view.space, fidelity=view.partial)
        places, posteriors = self._posteriors(view, embedding)
        # Losses of all rungs stay on one scale, as the process sees the rung itself: to lay the rungs over each other,
        # as the forest does, found less on learning curves (`benchmarks/fidelity/run.py`).
        targets, bounds = self._make_targets(view, places)
        outcomes = len(bounds)
        factors = [self._make_factor(view, embedding, posteriors[-1], targets[-1], places)]
        if view.partial and view.objectives == 1:
            factors.append(make_survival(view, embedding, posteriors[0], targets[0], places))
        given = [factor for factor in factors if factor is not None]
        improvement = ExpectedImprovement(
            view.space,
            embedding,
            posteriors[:outcomes],
            targets[:outcomes],
            weights=weights,
            bounds=bounds,
            factors=given,
        )
        # Pending trials count at their posterior mean, so that no proposal crowds them.
        improvement.believe_pending(view.pending)
        improvement.good = good_rows(view, places[improvement.order])
        return improvement

    def _posteriors(self, view: SearchView, embedding: Embedding) -> tuple[Places, list[Posterior]]:
        """Return the rows that count, and a posterior for each objective: fitted to the first of them, grown since."""
        # Hyperparameters are fitted only at certain sizes, so that a resumed study repeats them.
        # A fit costs far more than a row more in the factor, so it comes at sizes that grow by a sixteenth.
        size, later = _fitted_sizes(view.count, self.max_rows // _GROWTHS)
        state = view.revision, size, view.partial
        known = cast(_Known | None, view.memo.get(self))
        if known is None or known.state != state:
            known = None
            # What comes until the next fit needs room too.
            first = thin_rows(view, size, self.max_rows - (later - 1 - size if later - 1 > self.max_rows else 0))
        else:
            first = known.first
        places = np.concatenate([first, np.arange(size, view.count)])
        points = embedding(view.rows[places], view.progress[places])
        before = points[:0] if known is None else known.posteriors[0].points
        if known is None or not np.array_equal(points[: len(before)], before):
            y, _ = self._make_targets(view, first)
            generators = [rng(view.seed, "fit", size, j) for j in range(len(y))]
            begun = points[: len(first)]
            fitted = [fit_hyperparameters(begun, embedding.owners, y[j], source) for j, source in enumerate(generators)]
            posteriors = [Posterior.of(found, begun, embedding.owners) for found in fitted]
        else:
            posteriors = known.posteriors
        for row in range(len(posteriors[0].points), len(places)):  # singly, so that a resumed study rounds alike
            posteriors = [posterior.append(points[row : row + 1]) for posterior in posteriors]
        view.memo[self] = _Known(state, first, posteriors)
        return places, posteriors

    def _make_targets(self, view: SearchView, places: Places) -> tuple[Array, Array]:
        """Return the targets of told rows, those of the cost behind them if costs count, and the bounds of the rest."""
        y, bounds = make_targets(view.outcomes[places], view.bounds)
        return np.concatenate([y, _scale_costs(view.costs[places])[0][None, :]]) if self.cost else y, bounds

    def _make_factor(
        self, view: SearchView, embedding: Embedding, costs: Posterior, targets: Array, places: Places
    ) -> Callable[[Array], Array] | None:
        """Return what gives the logarithm of the prior^(10 / n) / seconds^cost at rows; None if that is always 0."""
        share = _PRIOR / max(1, view.count_results) if view.space.has_priors else 0.0
        if not share and not self.cost:
            return None
        alpha = costs.coefficients(targets)
        slope = self.cost * _scale_costs(view.costs[places])[1] if self.cost else 0.0

        def factor(rows: Array) -> Array:
            found = share * np.maximum(view.space.log_density(rows), _LEAST) if share else np.zeros(len(rows))
            if slope:
                found -= slope * (alpha @ costs.between(costs.points, embedding(rows)))
            return found

        return factor


def _scale_costs(costs: Array) -> tuple[Array, float]:
    """Return the logarithms of costs with mean 0 and deviation 1, 0 where none is known, and their deviation."""
    known = np.isfinite(costs)
    if not known.any():
        return np.zeros(len(costs)), 0.0
    logs = np.log(costs[known])
    deviation = float(logs.std())
    y = np.zeros(len(costs))
    y[known] = (logs - logs.mean()) / (deviation or 1.0)
    return y, deviation


def _fitted_sizes(count: int, most: int) -> tuple[int, int]:
    """Return at how many rows hyperparameters were fitted last, and will be next: every size to 16, then 1/16 apart."""
    size = 1
    while (following := size + max(1, min(most, size // _GROWTH))) <= count:
        size = following
    return size, following


def make_survival(
    view: SearchView, embedding: Embedding, posterior: Posterior, y: Array, places: NDArray[np.intp]
) -> Callable[[Array], Array] | None:
    """Return what gives the logarithm of P / (s + (1 - s) P) at rows, at the rung where it is least.

    A trial that is stopped at a rung never shows its end, so a place where trials are stopped again and again would
    stay as promising as it was. With a chance P to pass a rung at the share s of a full training, a proposal improves
    with P and costs s + (1 - s) P; where nobody would be stopped the quotient is 1. The rule itself is not asked: its
    cut is the quantile of a rung's losses that as many trials have passed.

    `y` are the targets of the told rows at `places`, whose process has the hyperparameters of `posterior`. None if no
    rung has stopped anybody.
    """
    farthest = dict(zip(view.numbers.tolist(), view.rungs.tolist(), strict=True))
    for trial, rung in zip(view.numbers.tolist(), view.rungs.tolist(), strict=True):
        farthest[trial] = max(rung, farthest[trial])
    found = []
    for rung in range(view.top):
        here = np.flatnonzero((view.rungs == rung) & ~view.failed)
        # Who is under way has passed: a verdict comes with the report.
        passed = [farthest[n] > rung or n in view.open for n in view.numbers[here].tolist()]
        kept = (view.rungs[places] == rung) & ~view.failed[places]
        if all(passed) or not kept.any():
            continue
        told, targets = places[kept], y[kept]
        order = np.argsort(view.losses[told, 0], kind="stable")
        cut = np.quantile(view.losses[here, 0], np.mean(passed))
        cut = np.interp(cut, view.losses[told[order], 0], targets[order])
        # The rung's own rows say most of it, and are few: no question takes much longer.
        points = embedding(view.rows[told], view.progress[told])
        process = Posterior.of(posterior.hyperparameters, points, posterior.owners)
        middle = float(targets.mean())
        alpha = process.coefficients(targets - middle)
        found.append((process, alpha, float(cut) - middle, points[0, -1], view.ladder[rung] / view.horizon))
    if not found:
        return None

    def survival(rows: Array) -> Array:
        from scipy.special import log_ndtr

        least = np.zeros(len(rows))
        for process, alpha, cut, z, share in found:
            mean, variance = process.predict(alpha, embedding(rows, np.full(len(rows), z)))
            chance = log_ndtr((cut - mean) / np.sqrt(variance + process.hyperparameters.noise))
            least = np.minimum(least, chance - np.log(share + (1.0 - share) * np.exp(chance)))
        return least

    return survival
