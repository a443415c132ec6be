"""Tables of finished trainings to search in: a set is a folder with `space.json` and one `.npz` per table.

`space.json` holds `hyperparameters_in_column_order`, `search_space` (name -> list of values) and `directions` (metric
-> minimize | maximize); the objective is the first `val_*` metric in it. An `.npz` holds `hp_index` [N, d], the
positions in these lists, and per metric [N, data seeds], in which NaN means that this seed was not run.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.columns import Column
from numpy.typing import NDArray

__all__ = ["Table", "find_tables"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """One complete grid with its losses: [N, data seeds], lower is better."""

    name: str
    family: str
    columns: tuple[Column, ...]
    losses: NDArray[np.float64]
    truth: NDArray[np.float64]  # mean over data seeds: what regret is judged on
    digest: str
    _strides: NDArray[np.int64]
    _order: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of configurations."""
        return len(self.truth)

    def place(self, positions: Sequence[float]) -> int:
        """Find the table's row of a configuration given by its positions."""
        return int(self._order[int(np.dot(self._strides, np.asarray(positions, dtype=np.int64)))])

    def show(self, seed: int, row: int, repeat: int) -> float:
        """Give the loss that evaluation shows: one data seed's, drawn by (seed, configuration, repeat)."""
        shown = self.losses[row][~np.isnan(self.losses[row])]
        drawn = hashlib.blake2b(f"{seed}/{row}/{repeat}".encode(), digest_size=8).digest()
        return float(shown[int.from_bytes(drawn, "big") % len(shown)])

    def regret(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Regret of rows, normalised: 0 is the best of the table, 1 its median."""
        best = self.truth.min()
        return np.asarray((self.truth[np.asarray(rows)] - best) / (np.median(self.truth) - best))


def find_tables(folder: Path) -> list[Table]:
    """Read every table of a set, or of all sets below a folder."""
    sets = sorted(path.parent for path in folder.rglob("space.json") if any(path.parent.glob("*.npz")))
    if not sets:
        raise SystemExit(f"{folder} holds no set of tables: a set is a folder with space.json and *.npz files")
    return [
        _read(path, json.loads((found / "space.json").read_text()))
        for found in sets
        for path in sorted(found.glob("*.npz"))
    ]


def _read(path: Path, space: dict[str, Any]) -> Table:
    names = space["hyperparameters_in_column_order"]
    columns = tuple(_column(name, space["search_space"][name]) for name in names)
    metric = next((name for name in space["directions"] if name.startswith("val_")), None)
    if metric is None:
        raise SystemExit(
            f"{path.parent / 'space.json'} has no val_* metric among its directions: {list(space['directions'])}"
        )
    with np.load(path) as arrays:
        index = arrays["hp_index"].astype(np.int64)
        values = arrays[metric].astype(np.float64)
    losses = -values if space["directions"][metric] == "maximize" else values
    sizes = np.array([len(column.values) for column in columns], dtype=np.int64)
    strides = np.concatenate([np.cumprod(sizes[:0:-1])[::-1], [1]]).astype(np.int64)
    codes = index @ strides
    if len(index) != sizes.prod() or len(np.unique(codes)) != len(index):
        raise SystemExit(f"{path} is no complete grid: {len(index)} rows for {sizes.prod()} configurations")
    if np.isnan(losses).all(axis=1).any():
        raise SystemExit(f"{path} has configurations without any value of {metric}")
    truth = np.nanmean(losses, axis=1)
    if not truth.min() < np.median(truth) < np.inf:
        raise SystemExit(f"{path}: regret has no scale, since the median configuration is as good as the best")
    order = np.empty(len(codes), dtype=np.int64)
    order[codes] = np.arange(len(codes))
    family = path.parent.name
    hashed = hashlib.blake2b(
        index.tobytes() + losses.tobytes() + json.dumps(space["search_space"]).encode(), digest_size=8
    )
    return Table(
        name=f"{family}/{path.stem}",
        family=family,
        columns=columns,
        losses=losses,
        truth=truth,
        digest=hashed.hexdigest(),
        _strides=strides,
        _order=order,
    )


def _column(name: str, values: Sequence[Any]) -> Column:
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return Column(name=name, kind="ordinal" if numeric else "choice", values=tuple(values))
