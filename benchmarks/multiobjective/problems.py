"""What is searched with several objectives: test functions whose true fronts are known, and tables of trainings.

ZDT: Zitzler, Deb and Thiele, Evolutionary Computation 8 (2000); DTLZ: Deb et al., CEC 2002. Hypervolume is taken to a
reference point that is worse than both the true front (by a tenth of its range) and, in each objective, half of all
configurations; so random search counts something, and nobody counts everything. A table's objectives are judged in
their logarithms, since losses and times span decades.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from benchmarks.peers.columns import Column
from numpy.typing import NDArray

from trainwright.pareto import hypervolume, non_dominated

__all__ = ["FUNCTIONS", "Function", "Problem", "Trainings", "find_problems"]

Array = NDArray[np.float64]


class Problem(Protocol):
    """Something to search: columns in, losses out."""

    @property
    def name(self) -> str:
        """How it is called in tables."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What varies."""

    @property
    def objectives(self) -> int:
        """The number of losses."""

    @property
    def digest(self) -> str:
        """What must be equal for a kept search to be used again."""

    def show(self, seed: int, point: Sequence[float], repeat: int) -> list[float]:
        """Give the losses that evaluation number `repeat` of a point shows."""

    def share(self, points: Sequence[Sequence[float]], shown: Array) -> float:
        """Give the hypervolume of the points on the front of what was shown, as a share of the true front's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A function on the unit cube, without noise."""

    name: str
    losses: Callable[[Array], Array]  # of points [count, dimension]: [count, objectives]
    dimension: int
    objectives: int
    front: Callable[[], Array]  # points of the true front, dense
    digest: str = "1"  # goes up when a formula changes

    @property
    def columns(self) -> tuple[Column, ...]:
        """One float per dimension."""
        return tuple(Column(name=f"x{i}", kind="float", low=0.0, high=1.0) for i in range(self.dimension))

    def show(self, seed: int, point: Sequence[float], repeat: int) -> list[float]:
        """Give the losses."""
        del seed, repeat
        found: list[float] = self.losses(np.array([point]))[0].tolist()
        return found

    def share(self, points: Sequence[Sequence[float]], shown: Array) -> float:
        """Give the share of the true hypervolume."""
        del points
        reference, most = self._scale
        return hypervolume(shown, reference) / most

    @cached_property
    def _scale(self) -> tuple[Array, float]:
        front = self.front()
        drawn = self.losses(np.random.default_rng(0).random((10_000, self.dimension)))
        reference = _reference(front, drawn)
        return reference, _front_volume(front, reference)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trainings:
    """A complete grid of finished trainings with the first `val_*` metric and the training time as objectives."""

    name: str
    columns: tuple[Column, ...]
    losses: Array  # [rows, objectives, data seeds]
    digest: str
    strides: NDArray[np.int64]
    order: NDArray[np.int64]
    objectives: int = 2

    def show(self, seed: int, point: Sequence[float], repeat: int) -> list[float]:
        """Give one data seed's losses, drawn by (seed, configuration, repeat)."""
        row = self._row(point)
        drawn = hashlib.blake2b(f"{seed}/{row}/{repeat}".encode(), digest_size=8).digest()
        found: list[float] = self.losses[row, :, int.from_bytes(drawn, "big") % self.losses.shape[2]].tolist()
        return found

    def share(self, points: Sequence[Sequence[float]], shown: Array) -> float:
        """Give the share of the true hypervolume: of means over data seeds, in logarithms."""
        truth, reference, most = self._scale
        chosen = np.flatnonzero(non_dominated(shown))
        rows = [self._row(points[place]) for place in chosen.tolist()]
        return hypervolume(truth[rows], reference) / most

    def _row(self, point: Sequence[float]) -> int:
        return int(self.order[int(np.dot(self.strides, np.asarray(point, dtype=np.int64)))])

    @cached_property
    def _scale(self) -> tuple[Array, Array, float]:
        truth = np.log10(self.losses.mean(axis=2))
        front = truth[non_dominated(truth)]
        reference = _reference(front, truth)
        return truth, reference, hypervolume(front, reference)


def find_problems(tables: Path | None) -> list[Problem]:
    """Return the functions, and the trainings of every set below a folder that has a training time."""
    found: list[Problem] = list(FUNCTIONS)
    for path in sorted(tables.rglob("space.json")) if tables is not None else []:
        space = json.loads(path.read_text())
        if "train_time" in space["directions"]:
            found += [_trainings(file, space) for file in sorted(path.parent.glob("*.npz"))]
    return found


def _trainings(path: Path, space: dict[str, dict[str, list[float]]]) -> Trainings:
    names = space["hyperparameters_in_column_order"]
    values = [tuple(space["search_space"][name]) for name in names]
    columns = tuple(
        Column(name=name, kind="choice" if any(isinstance(v, str) for v in known) else "ordinal", values=known)
        for name, known in zip(names, values, strict=True)
    )
    metric = next(name for name in space["directions"] if name.startswith("val_"))
    with np.load(path) as arrays:
        index = arrays["hp_index"].astype(np.int64)
        losses = np.stack([arrays[metric], arrays["train_time"]], axis=1).astype(np.float64)
    sizes = np.array([len(known) for known in values], dtype=np.int64)
    strides = np.concatenate([np.cumprod(sizes[:0:-1])[::-1], [1]]).astype(np.int64)
    order = np.empty(len(index), dtype=np.int64)
    order[index @ strides] = np.arange(len(index))
    digest = hashlib.blake2b(index.tobytes() + losses.tobytes(), digest_size=8).hexdigest()
    name = f"{path.parent.name}/{path.stem}"
    return Trainings(name=name, columns=columns, losses=losses, digest=digest, strides=strides, order=order)


def _reference(front: Array, all_losses: Array) -> Array:
    found: Array = np.maximum(front.max(axis=0) + 0.1 * np.ptp(front, axis=0), np.median(all_losses, axis=0))
    return found


def _front_volume(front: Array, reference: Array) -> float:
    if front.shape[1] == 2:
        return hypervolume(front, reference)
    # Three objectives: DTLZ2's front is the unit sphere's octant, whose ball is what no point can reach.
    return float(np.prod(reference) - np.pi / 6.0)


def _zdt(x: Array, shape: Callable[[Array, Array], Array]) -> Array:
    g = 1.0 + 9.0 * x[:, 1:].mean(axis=1)
    return np.column_stack([x[:, 0], g * shape(x[:, 0], g)])


def _zdt1(x: Array) -> Array:
    return _zdt(x, lambda f, g: 1.0 - np.sqrt(f / g))


def _zdt2(x: Array) -> Array:
    return _zdt(x, lambda f, g: 1.0 - (f / g) ** 2)


def _zdt3(x: Array) -> Array:
    return _zdt(x, lambda f, g: 1.0 - np.sqrt(f / g) - f / g * np.sin(10.0 * np.pi * f))


def _zdt_front(losses: Callable[[Array], Array]) -> Callable[[], Array]:
    def front() -> Array:
        x = np.zeros((20_001, 2))
        x[:, 0] = np.linspace(0.0, 1.0, len(x))
        found = losses(x)
        return np.asarray(found[non_dominated(found)])

    return front


def _dtlz2(x: Array) -> Array:
    g = 1.0 + ((x[:, 2:] - 0.5) ** 2).sum(axis=1)
    a, b = 0.5 * np.pi * x[:, 0], 0.5 * np.pi * x[:, 1]
    return np.asarray(g[:, None] * np.column_stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)]))


def _dtlz7(x: Array) -> Array:
    g = 1.0 + 9.0 * x[:, 1:].mean(axis=1)
    f = x[:, 0]
    return np.column_stack([f, (1.0 + g) * (2.0 - f / (1.0 + g) * (1.0 + np.sin(3.0 * np.pi * f)))])


FUNCTIONS = (
    Function(name="zdt1", losses=_zdt1, dimension=6, objectives=2, front=_zdt_front(_zdt1)),
    Function(name="zdt2", losses=_zdt2, dimension=6, objectives=2, front=_zdt_front(_zdt2)),
    Function(name="zdt3", losses=_zdt3, dimension=6, objectives=2, front=_zdt_front(_zdt3)),
    Function(name="dtlz2", losses=_dtlz2, dimension=6, objectives=3, front=lambda: np.eye(3)),
    Function(name="dtlz7", losses=_dtlz7, dimension=6, objectives=2, front=_zdt_front(_dtlz7)),
)
