"""Random search, drawn from the priors, and quasi-random search by a scrambled low-discrepancy (Halton) sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.randomness import rng
from trainwright.search.searcher import draw_new, propose, propose_default
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["QuasiRandomSearcher", "RandomSearcher", "draw_spread", "from_the_middle"]

_BLOCK = 64  # points made at once; the sequence may be entered at any block


@dataclass(frozen=True, kw_only=True, slots=True)
class QuasiRandomSearcher:
    """Fill the space evenly, through priors and conditions, without talk between workers: trial n is point n.

    Scrambled Halton (Owen, arXiv 1706.02808). A point that breaks a requirement or was tried is replaced by a random
    one.
    """

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return the point of each number; O(dimension) each."""
        taken: set[bytes] = set()
        proposals = []
        for number in numbers:
            proposal = propose_default(view, number, taken, searcher="halton")
            if proposal is None:
                proposal = propose(view, draw_spread(view, number, taken), number, searcher="halton")
            proposals.append(proposal)
        return proposals


def draw_spread(view: SearchView, number: int, taken: set[bytes]) -> NDArray[np.float64]:
    """Return the row of point `number`, or a random one if that is illegal, tried or in `taken`; add its key there."""
    space = view.space
    if space.dimension:
        # Through the priors: an even point of the cube becomes a likely one of the space.
        row = space.settle(space.quantile(_halton_point(view, number)[None, :]))
        key = space.row_keys(row)[0]
        if space.legal(row)[0] and key not in view.tried and key not in taken:
            taken.add(key)
            found: NDArray[np.float64] = row[0]
            return found
    return draw_new(view, number, taken, "spread")


def from_the_middle(view: SearchView, number: int, count: int) -> int:
    """Return `number`'s place when the first `count` points are visited from the middle of the space outwards.

    People put their ranges around what they believe in, and training fails at the ends of ranges: the same points in
    this order find a usable configuration sooner.
    """
    if number >= count:
        return number
    order = view.memo.get(("middle", count))
    if not isinstance(order, np.ndarray):
        numeric = [column.kind == "unit" for column in view.space.columns]
        distance = ((_halton_engine(view).random(count)[:, numeric] - 0.5) ** 2).sum(axis=1)
        order = view.memo["middle", count] = np.argsort(distance, kind="stable")
    return int(order[number])


def _halton_point(view: SearchView, number: int) -> NDArray[np.float64]:
    # Blocks may be entered anywhere, so that no worker has to draw the points before its own.
    block, place = divmod(number, _BLOCK)
    known = view.memo.get("spread")
    if not isinstance(known, tuple) or known[0] != block:
        engine = _halton_engine(view)
        if block:  # scipy refuses to go forward by nothing
            engine.fast_forward(block * _BLOCK)
        known = block, engine.random(_BLOCK)
        view.memo["spread"] = known
    point: NDArray[np.float64] = known[1][place]
    return point


def _halton_engine(view: SearchView) -> Any:
    from scipy.stats import qmc

    return qmc.Halton(view.space.dimension, scramble=True, seed=int(rng(view.seed, "spread", 0).integers(2**63)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomSearcher:
    """Draw each configuration from the space by trial number, none twice (Bergstra and Bengio, JMLR 2012)."""

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new random configuration per number; O(1) in the length of the study."""
        taken: set[bytes] = set()
        proposals = []
        for number in numbers:
            proposal = propose_default(view, number, taken, searcher="random")
            if proposal is None:
                proposal = propose(view, draw_new(view, number, taken, "random"), number, searcher="random")
            proposals.append(proposal)
        return proposals
