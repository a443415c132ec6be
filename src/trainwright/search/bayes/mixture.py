"""Where good configurations lie, as a mixture of products: normal in the unit columns, a table for each choice.

Fitted by expectation and maximisation (Dempster, Laird and Rubin, JRSS B 39, 1977) under a weak prior, so that a
component of a single row has a width. An inactive value (NaN) plays no part in its column.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainwright.search.bayes.candidates import make_legal
from trainwright.space import Space

__all__ = ["Mixture"]

Array = NDArray[np.float64]

_COMPONENTS = 5
_STEPS = 30
_WIDTH = 1.0 / 8.0  # of a component that has seen one row, in units; and of the normal around a given row
_FAVOUR = 10.0  # how much likelier a given row's own code is than another one


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture:
    """A law over the latent rows of a space; a column of which nothing is known follows the space's own."""

    space: Space
    weights: Array  # [components]
    means: Array  # [components, columns]; NaN where nothing is known, and for choices
    widths: Array
    tables: dict[int, Array]  # by choice column: [components, codes]

    @classmethod
    def around_rows(cls, space: Space, rows: Array) -> Self:
        """Return a component for each row: deviation 1/8 of the unit, its codes ten times as likely as others."""
        # A normal around each row, and its own codes favoured but no other code ruled out.
        means = np.where(_units(space), rows, np.nan)
        tables = {}
        for c, points in _choices(space):
            if not np.isnan(rows[:, c]).all():
                table = 1.0 + (_FAVOUR - 1.0) * (rows[:, c][:, None] == np.arange(points))
                tables[c] = table / table.sum(axis=1, keepdims=True)
        weights = np.full(len(rows), 1.0 / len(rows))
        return cls(space=space, weights=weights, means=means, widths=np.full_like(means, _WIDTH), tables=tables)

    @classmethod
    def fitted(cls, space: Space, rows: Array) -> Self:
        """Return the mixture of five components that rows make likely; one row or more."""
        units = _units(space)
        known = ~np.isnan(rows)
        values = np.where(known, rows, 0.0)
        codes = {
            c: (rows[:, c][:, None] == np.arange(p)).astype(np.float64) for c, p in _choices(space) if known[:, c].any()
        }
        # Expectation and maximisation: components from shares of the rows, then shares from the components.
        shares = _first_shares(rows, units)
        for _ in range(_STEPS):
            # An inactive value is no observation of its column, so each column has its own mass.
            mass = shares.T @ known  # [components, columns]
            with np.errstate(invalid="ignore"):
                means = np.where((mass > 0.0) & units, shares.T @ values, np.nan) / np.maximum(mass, 1e-300)
            offsets = np.where(known[None] & units, rows[None] - means[:, None, :], 0.0)  # [components, rows, columns]
            squares = np.einsum("nk,knc->kc", shares, np.nan_to_num(offsets) ** 2)
            # The prior counts as one more row at the default width: a component of one row is not a point.
            widths = np.sqrt((squares + _WIDTH**2) / (mass + 1.0))
            tables = {c: _table(shares.T @ hot) for c, hot in codes.items()}
            weights = (shares.sum(axis=0) + 1.0) / (len(rows) + shares.shape[1])
            # In logarithms, since densities of many columns underflow.
            logs = np.log(weights) - np.nan_to_num(0.5 * (offsets / widths[:, None, :]) ** 2).sum(axis=2).T
            logs -= known @ np.log(np.where(units, widths, 1.0)).T
            logs += sum((hot @ np.log(tables[c]).T for c, hot in codes.items()), start=np.zeros_like(logs))
            shares = np.exp(logs - logs.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        return cls(space=space, weights=weights, means=means, widths=widths, tables=tables)

    def draw(self, generator: np.random.Generator, count: int) -> Array:
        """Return at most `count` legal rows: those of so many draws that meet the space's requirements."""
        # First the component of each draw, then the row from its law.
        place = generator.choice(len(self.weights), size=count, p=self.weights)
        prior_rows = self.space.latent(generator, count)
        drawn = self.means[place] + self.widths[place] * generator.standard_normal(prior_rows.shape)
        drawn = np.abs(drawn) % 2.0  # folded back from the bounds
        latent = np.where(np.isnan(drawn), prior_rows, np.where(drawn > 1.0, 2.0 - drawn, drawn))
        for c, table in self.tables.items():
            steps = table.cumsum(axis=1)[place]
            latent[:, c] = (generator.random(count)[:, None] * steps[:, -1:] > steps).sum(axis=1)
        return make_legal(self.space, latent, generator)


def _units(space: Space) -> NDArray[np.bool_]:
    return np.array([column.kind != "choice" for column in space.columns])


def _choices(space: Space) -> list[tuple[int, int]]:
    return [(c, column.points or 1) for c, column in enumerate(space.columns) if column.kind == "choice"]


def _table(counts: Array) -> Array:
    """Return probabilities of codes: one more row, spread over all codes, is taken for seen."""
    table: Array = (counts + 1.0 / counts.shape[1]) / (counts.sum(axis=1, keepdims=True) + 1.0)
    return table


def _first_shares(rows: Array, units: NDArray[np.bool_]) -> Array:
    """Return to which component each row belongs at first: to that of the nearest of five rows far from each other."""
    scaled = np.nan_to_num(np.where(units, rows, np.nan), nan=0.5)
    # Each next row is the one farthest from those chosen, so that no two components begin in one cluster.
    distance = ((scaled[:, None, :] - scaled[None]) ** 2).sum(axis=2)
    other = (rows[:, None, :] != rows[None]) & ~units
    distance += 0.5 * other.sum(axis=2)
    chosen = [0]
    while len(chosen) < min(_COMPONENTS, len(rows)):
        chosen.append(int(distance[:, chosen].min(axis=1).argmax()))
    shares = np.zeros((len(rows), len(chosen)))
    shares[np.arange(len(rows)), distance[:, chosen].argmin(axis=1)] = 1.0
    return shares
