"""Computes hyperparameter importance: the share of the variance of one metric, at one epoch, that each parameter moves.

Total-effect indices (Homma and Saltelli, 1996) of the mean of a Gaussian process, by Jansen's estimator (1999):
E[(f(x) - f(x'))^2] / 2, where x' is x with one parameter drawn anew from the space; a parameter that switches others
off or on is credited with that. The process sees all trials at one epoch, so that those which a rule stopped early
count like the others.

How far a share may be believed is estimated by half-samples of the trials, to each of which a column without meaning is
added: a parameter is known to matter if it moves the metric more than that column does. Half-samples spread as the
estimate itself does (Shao and Wu, 1989).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainwright.aliases import Array
from trainwright.errors import SearchError, closest
from trainwright.ledger import State, TrialState
from trainwright.randomness import rng
from trainwright.search.bayes.response_surface import ResponseSurface
from trainwright.space import Space

__all__ = ["Importance", "importance_of"]


_LEAST, _MOST = 10, 300  # results
_REACHED = 0.95  # of the trials that reached the first epoch, so many reached the one asked at: fewer are a selection
_DRAWS, _FEWER_DRAWS = 1000, 400
_HALVES, _TAIL = 20, 0.05  # half-samples, and the share of them beyond either end of an interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """Shares that sum to 1, by column of the space, each with the ends of a 90 % interval.

    `low` is 0 where the parameter is not known to matter. `explained` (0 to 1) is the share of the variance of unseen
    results that half of the results predict; `epoch` is None for values that belong to no epoch.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    explained: float
    epoch: int | None
    results: int

    @property
    def ordered(self) -> tuple[str, ...]:
        """The names, the most important first."""
        pairs = sorted(zip(self.shares, self.names, strict=True), key=lambda pair: -pair[0])
        return tuple(name for _, name in pairs)

    @property
    def known(self) -> tuple[str, ...]:
        """The names of those whose interval does not hold 0, the most important first."""
        lows = dict(zip(self.names, self.low, strict=True))
        return tuple(name for name in self.ordered if lows[name] > 0)


def importance_of(state: State, space: Space, metric: str | None = None, *, epoch: int | None = None) -> Importance:
    """Return the importance of the space's columns for a metric (default: the first objective's) at an epoch.

    The default epoch is the last that 95 % of the trials have reached; a metric that is never reported, only returned,
    has none. At most 300 results are looked at. Raises SearchError if there are too few to say anything, or if they are
    all equal.
    """
    name = state.objectives[0].metric if metric is None else metric
    found, at = _values(state, name, epoch)
    least = max(_LEAST, 2 * space.dimension)
    if len(found) < least:
        where = "" if at is None else f" at epoch {at}"
        raise SearchError(f"parameter importance: at least {least} results are needed; so far: {len(found)}{where}")
    numbers = sorted(found)
    if len(numbers) > _MOST:
        numbers = [numbers[place] for place in np.linspace(0, len(numbers) - 1, _MOST).astype(int)]
    rows = space.encode_all([state.trials[number].params for number in numbers])
    y = np.array([found[number] for number in numbers])
    if y.min() == y.max():
        raise SearchError(f"parameter importance: no parameter makes a difference in {len(numbers)} results")
    shares, low, high, explained = _variance_shares(space, rows, y, state.seed)
    return Importance(
        names=tuple(column.name for column in space.columns),
        shares=tuple(shares.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        explained=explained,
        epoch=at,
        results=len(numbers),
    )


def _values(state: State, metric: str, epoch: int | None) -> tuple[dict[int, float], int | None]:
    """Return the finite values of a metric by trial, and the epoch at which they are; None: at the trials' ends."""
    # All trials must be compared at one epoch, or early stopping would look like an effect of a parameter.
    counts = _counts(state.trials.values(), metric)
    if epoch is None and counts:
        most = max(counts.values())
        # A later epoch would be seen by survivors only, whose most important parameter no longer varies.
        epoch = max(candidate for candidate, count in counts.items() if count >= _REACHED * most)
    if epoch is not None and epoch not in counts:
        if not counts:
            raise _unknown(state, metric)
        raise SearchError(
            f"importance: no trial has reported {metric!r} at epoch {epoch!r}; allowed: 1 to {max(counts)}"
        )
    found = {}
    for number, trial in state.trials.items():
        value = trial.values.get(metric) if epoch is None else _reported(trial, metric, epoch)
        if value is not None and np.isfinite(value):
            found[number] = float(value)
    if not found and metric not in {objective.metric for objective in state.objectives}:
        raise _unknown(state, metric)
    return found, epoch


def _counts(trials: Iterable[TrialState], metric: str) -> dict[int, int]:
    counts: dict[int, int] = {}
    for trial in trials:
        for epoch in trial.reports:
            if _reported(trial, metric, epoch) is not None:
                counts[epoch] = counts.get(epoch, 0) + 1
    return counts


def _reported(trial: TrialState, metric: str, epoch: int) -> float | None:
    report = trial.reports.get(epoch)
    value = None if report is None else report.metrics.get(metric)
    return value if value is not None and np.isfinite(value) else None


def _unknown(state: State, metric: str) -> SearchError:
    reported = (
        name for trial in state.trials.values() for candidate in trial.reports.values() for name in candidate.metrics
    )
    known = dict.fromkeys([*(objective.metric for objective in state.objectives), *reported])
    near = closest(metric, known)
    return SearchError(f"importance: no trial has the metric {metric!r}; allowed: {', '.join(known)}{near}")


def _variance_shares(space: Space, rows: Array, y: Array, seed: int) -> tuple[Array, Array, Array, float]:
    """Return the shares, the ends of their intervals, and what half-samples explain of the other half."""
    model, y = ResponseSurface.choose(space, rows, y, seed)
    # Shares of the variance of the predicted mean over the whole space, however the trials are spread.
    whole = _total_effects(model, rng(seed, "importance", 1), _DRAWS)
    shares = whole / whole.sum() if whole.sum() > 0 else np.full(space.dimension, 1.0 / space.dimension)
    above, halves, residuals = [], [], []
    for half in range(_HALVES):
        generator = rng(seed, "importance", 2 + half)
        order = generator.permutation(len(y))
        chosen, rest = order[: len(y) // 2], order[len(y) // 2 :]
        if not y[chosen].std() > 0:
            continue
        # Each half-sample fits the surface again, next to a column that cannot matter.
        chance = _permuted_column(space, rows, generator)
        part = ResponseSurface(
            space, rows[chosen], y[chosen], generator, trend=model.trend, chance=chance[chosen],
            like=model.hyperparameters,
        )  # fmt: skip
        effects = _total_effects(part, generator, _FEWER_DRAWS)
        total = max(effects[:-1].sum(), 1e-12)
        # A parameter that moves no more than a column of chance does is not known to move anything.
        above.append((effects[:-1] - effects[-1]) / total)
        halves.append(effects[:-1] / total)
        residuals.append(float(((part.predict(rows[rest], chance[rest]) - y[rest]) ** 2).mean()))
    if not halves:
        return shares, np.zeros_like(shares), np.ones_like(shares), 0.0
    low = np.minimum(np.maximum(np.quantile(above, _TAIL, axis=0), 0.0), shares)
    high = np.maximum(np.quantile(halves, 1.0 - _TAIL, axis=0), shares)
    return shares, low, high, max(0.0, 1.0 - float(np.mean(residuals)) / float(y.var()))


def _permuted_column(space: Space, rows: Array, generator: np.random.Generator) -> Array:
    """Return the values [rows, 1] of a drawn unit column in another order, which therefore mean nothing.

    They lie as crowded as a focused search leaves a parameter: of even draws a surface would be surer than of these.
    """
    values = generator.random(len(rows))
    units = [c for c, column in enumerate(space.columns) if column.kind != "choice"]
    if units:
        column = generator.permutation(rows[:, units[int(generator.integers(len(units)))]])
        values = np.where(np.isnan(column), values, column)
    return values[:, None]


def _total_effects(surface: ResponseSurface, generator: np.random.Generator, draws: int) -> Array:
    """Return the total effect of each column, those of chance behind the space's."""
    space, dimension = surface.space, surface.space.dimension
    # Latent rows have a value in every column, so that redrawing a parent finds its children's values.
    latent, redrawn = space.latent(generator, draws), space.latent(generator, draws)
    chance, other_chance = generator.random((2, draws, surface.extra_columns))

    def predict(latent: Array, chance: Array) -> Array:
        return surface.predict(space.settle(latent), chance if surface.extra_columns else None)

    before = predict(latent, chance)
    effects = np.empty(dimension + surface.extra_columns)
    for column in range(len(effects)):
        # Jansen's estimator: one column is drawn again, the others stay.
        changed, changed_chance = latent.copy(), chance.copy()
        if column < dimension:
            changed[:, column] = redrawn[:, column]
        else:
            changed_chance[:, column - dimension] = other_chance[:, column - dimension]
        effects[column] = ((before - predict(changed, changed_chance)) ** 2).mean() / 2
    return effects
