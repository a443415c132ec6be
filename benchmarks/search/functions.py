"""Test functions to search in: nine of the DeepHyper paper (JOSS 10.21105/joss.07975), and four in many columns.

Formulas and domains: Surjanovic and Bingham, Virtual Library of Simulation Experiments, and for Shekel Dixon and Szego
(1978). Two of them (Ackley, Griewank) have their minimum in the middle of the domain, where any method that begins in
the middle finds it: read their rows with that in mind.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benchmarks.peers.columns import Column
from numpy.typing import NDArray

__all__ = ["FUNCTIONS", "WIDE", "Function", "find_functions"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A function without noise on a box; a point is remembered by its loss alone, to six digits."""

    name: str
    losses: Callable[[Array], Array]  # of points [count, dimension]
    bounds: tuple[tuple[float, float], ...]
    best: tuple[float, ...]  # a minimum
    family: str = "functions"
    digest: str = "1"  # of what the losses are: goes up when a formula or a domain changes
    size: None = None  # number of points

    @property
    def columns(self) -> tuple[Column, ...]:
        """One float column per dimension."""
        return tuple(
            Column(name=f"x{i}", kind="float", low=low, high=high) for i, (low, high) in enumerate(self.bounds)
        )

    def place(self, point: Sequence[float]) -> float:
        """Return what is remembered of a point: its loss."""
        return float(f"{self.losses(np.asarray([point], dtype=np.float64))[0]:.6g}")

    def show(self, seed: int, place: float, repeat: int) -> float:
        """Give the loss of a remembered point; there is no noise."""
        del seed, repeat
        return place

    def regret(self, places: Sequence[float] | Array) -> Array:
        """Regret of remembered points, normalised: 0 is the minimum, 1 the median of uniform draws."""
        least, median = self._scale
        return np.maximum(0.0, (np.asarray(places) - least) / (median - least))

    @cached_property
    def _scale(self) -> tuple[float, float]:
        low, high = np.array(self.bounds).T
        drawn = low + (high - low) * np.random.default_rng(0).random((100_000, len(low)))
        return float(self.losses(np.array([self.best]))[0]), float(np.median(self.losses(drawn)))


def find_functions(names: str) -> list[Function]:
    """Return the functions of a comma-separated list, in which `all` are the nine and `wide` those of many columns."""
    sets = {"all": FUNCTIONS, "wide": WIDE}
    known = {function.name: function for function in FUNCTIONS + WIDE}
    wanted = [
        each for name in names.split(",") for each in ([one.name for one in sets[name]] if name in sets else [name])
    ]
    for name in wanted:
        if name not in known:
            raise SystemExit(f"{name!r} is no function; known are all, wide, {', '.join(known)}")
    return [known[name] for name in wanted]


def _ackley(x: Array) -> Array:
    near = np.exp(-0.2 * np.sqrt((x**2).mean(axis=1)))
    return np.asarray(20.0 - 20.0 * near - np.exp(np.cos(2.0 * np.pi * x).mean(axis=1)) + math.e)


def _branin(x: Array) -> Array:
    a, b = x.T
    bent = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return np.asarray(bent**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0)


def _griewank(x: Array) -> Array:
    roots = np.sqrt(np.arange(1, x.shape[1] + 1))
    return np.asarray((x**2).sum(axis=1) / 4000.0 - np.cos(x / roots).prod(axis=1) + 1.0)


_HARTMANN_WEIGHT = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_SCALE = np.array([
    [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
    [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
    [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
    [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
])  # fmt: skip
_HARTMANN_PLACE = 1e-4 * np.array([
    [1312, 1696, 5569, 124, 8283, 5886],
    [2329, 4135, 8307, 3736, 1004, 9991],
    [2348, 1451, 3522, 2883, 3047, 6650],
    [4047, 8828, 8732, 5743, 1091, 381],
])  # fmt: skip


def _hartmann(x: Array) -> Array:
    inner = (_HARTMANN_SCALE * (x[:, None, :] - _HARTMANN_PLACE) ** 2).sum(axis=2)
    return np.asarray(-np.exp(-inner) @ _HARTMANN_WEIGHT)


def _levy(x: Array) -> Array:
    w = 1.0 + (x - 1.0) / 4.0
    middle = (w[:, :-1] - 1.0) ** 2 * (1.0 + 10.0 * np.sin(np.pi * w[:, :-1] + 1.0) ** 2)
    last = (w[:, -1] - 1.0) ** 2 * (1.0 + np.sin(2.0 * np.pi * w[:, -1]) ** 2)
    return np.asarray(np.sin(np.pi * w[:, 0]) ** 2 + middle.sum(axis=1) + last)


def _michalewicz(x: Array) -> Array:
    order = np.arange(1, x.shape[1] + 1)
    return np.asarray(-(np.sin(x) * np.sin(order * x**2 / np.pi) ** 20).sum(axis=1))


def _rosenbrock(x: Array) -> Array:
    return np.asarray((100.0 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (x[:, :-1] - 1.0) ** 2).sum(axis=1))


def _schwefel(x: Array) -> Array:
    return np.asarray((418.9828872724338 - x * np.sin(np.sqrt(np.abs(x)))).sum(axis=1))


_SHEKEL_PLACE = np.array([
    [4.0, 1.0, 8.0, 6.0, 3.0, 2.0, 5.0, 8.0, 6.0, 7.0],
    [4.0, 1.0, 8.0, 6.0, 7.0, 9.0, 3.0, 1.0, 2.0, 3.6],
    [4.0, 1.0, 8.0, 6.0, 3.0, 2.0, 5.0, 8.0, 6.0, 7.0],
    [4.0, 1.0, 8.0, 6.0, 7.0, 9.0, 3.0, 1.0, 2.0, 3.6],
]).T  # fmt: skip
_SHEKEL_WIDTH = 0.1 * np.array([1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 3.0, 7.0, 5.0, 5.0])


def _shekel(x: Array) -> Array:
    distances = ((x[:, None, :] - _SHEKEL_PLACE) ** 2).sum(axis=2)
    return np.asarray(-(1.0 / (distances + _SHEKEL_WIDTH)).sum(axis=1))


FUNCTIONS = (
    Function(name="ackley5", losses=_ackley, bounds=((-32.768, 32.768),) * 5, best=(0.0,) * 5),
    Function(name="branin2", losses=_branin, bounds=((-5.0, 10.0), (0.0, 15.0)), best=(math.pi, 2.275)),
    Function(name="griewank5", losses=_griewank, bounds=((-600.0, 600.0),) * 5, best=(0.0,) * 5),
    Function(
        name="hartmann6",
        losses=_hartmann,
        bounds=((0.0, 1.0),) * 6,
        best=(0.20168952, 0.15001069, 0.47687398, 0.27533243, 0.31165162, 0.65730054),
    ),
    Function(name="levy5", losses=_levy, bounds=((-10.0, 10.0),) * 5, best=(1.0,) * 5),
    Function(
        name="michalewicz5",
        losses=_michalewicz,
        bounds=((0.0, math.pi),) * 5,
        best=(2.20290552, 1.57079633, 1.28499157, 1.92305847, 1.72046977),
    ),
    Function(name="rosenbrock5", losses=_rosenbrock, bounds=((-5.0, 10.0),) * 5, best=(1.0,) * 5),
    Function(name="schwefel5", losses=_schwefel, bounds=((-500.0, 500.0),) * 5, best=(420.96874636,) * 5),
    Function(
        name="shekel",
        losses=_shekel,
        bounds=((0.0, 10.0),) * 4,
        best=(4.00074686, 3.99950948, 4.00074686, 3.99950948),
    ),
)


def _wide(function: Function, columns: int, *, embedded: bool = False) -> Function:
    """Return a function of many columns, its minimum moved; `embedded`: those beyond its own have no effect."""
    generator = np.random.default_rng([columns, *function.name.encode()])
    low, high = function.bounds[0]
    if embedded:
        places = generator.permutation(columns)[: len(function.bounds)]
        best = np.full(columns, 0.5 * (low + high))
        best[places] = function.best
    else:
        # Somewhere in the middle three fifths of each column.
        best = low + (high - low) * generator.uniform(0.2, 0.8, columns)
        step = best - function.best[0]

    def losses(x: Array) -> Array:
        return function.losses(x[:, places] if embedded else x - step)

    name = f"{function.name.rstrip('0123456789')}{columns}"
    bounds = (function.bounds[0],) * columns
    return Function(name=name, losses=losses, bounds=bounds, best=tuple(best.tolist()), family="wide")


_BY_NAME = {function.name: function for function in FUNCTIONS}
WIDE = tuple(
    _wide(_BY_NAME[name], columns, embedded=name == "hartmann6")
    for columns in (30, 100)
    for name in ("ackley5", "hartmann6", "levy5", "rosenbrock5")
)
