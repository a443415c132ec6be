"""DeepHyper's multi-objective search (D-MoBO, arXiv 2309.14936) behind ask and tell; a loss is a list.

`several_deephyper-chebyshev` has the defaults of CBO for several objectives; `-linear` is the paper's recipe: linear
scalarisation of objectives scaled to uniform quantiles. Both sample the acquisition function's maximum and have qUCBd,
like the one-objective `deephyper`; grids go in as integer positions.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.peers.columns import Column
from benchmarks.peers.with_deephyper import Cbo

__all__ = ["METHODS", "Several"]

_SAMPLING = {"acq_optimizer": "sampling", "multi_point_strategy": "qUCBd"}


class Several(Cbo):
    """CBO; it maximises, so losses go in negated."""

    def __init__(self, columns: Sequence[Column], seed: int, *, settings: dict[str, Any], objectives: int = 1) -> None:
        del objectives  # it counts them itself at the first result
        super().__init__(columns, seed, settings=settings)

    def tell(self, tokens: Sequence[Any], losses: Sequence[Any]) -> None:
        """Tell losses; this fits the surrogate and optimises the acquisition function."""
        told = [[-loss for loss in values] if isinstance(values, list) else -values for values in losses]
        self._search.tell(list(zip(tokens, told, strict=True)))


METHODS = {
    "several_deephyper-chebyshev": partial(Several, settings=_SAMPLING),
    "several_deephyper-linear": partial(
        Several,
        settings={**_SAMPLING, "moo_scalarization_strategy": "Linear", "objective_scaler": "quantile-uniform"},
    ),
}
