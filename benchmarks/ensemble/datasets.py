"""The data of the ensemble benchmarks: public sets that come inside packages, cut into splits of their own.

digits and diabetes come with scikit-learn, Fashion-MNIST with Debian's dataset-fashion-mnist, Letter, Satellite and
Boston housing with Debian's r-cran-mlbench, concrete with r-cran-modeldata (R is not needed: `apt-get download`,
`dpkg -x` them into a folder, and give that folder).
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.ensemble.rdata import read_rda, read_rdb

__all__ = ["CLASSES", "SPLITS", "VALUES", "Missing", "load", "load_values"]

Array = npt.NDArray[Any]

FASHION = "usr/share/datasets/fashion-mnist"
MLBENCH = "usr/lib/R/site-library/mlbench/data"
MODELDATA = "usr/lib/R/site-library/modeldata/data"
SPLITS = ("train", "validation", "selection", "calibration", "test")

CLASSES = {  # rows per split; the test split is what is left, up to the number here
    "digits": (797, 200, 300, 150, 350),
    "fashion-mnist": (6000, 1000, 1000, 1000, 1000),
    "letter": (8000, 2000, 2000, 2000, 6000),
    "satellite": (3000, 700, 700, 700, 1335),
}
VALUES = ("diabetes", "boston", "concrete")


class Missing(Exception):
    """A data set whose package is not there."""


def load(name: str, root: Path) -> dict[str, tuple[Array, Array]]:
    """Return (inputs [N, D] in float32, classes [N]) of each of the five splits, inputs scaled by the training rows."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    elif name == "fashion-mnist":
        x, y = _fashion(root / FASHION)
    else:
        x, y = _mlbench(
            root, "LetterRecognition" if name == "letter" else "Satellite", "lettr" if name == "letter" else "classes"
        )
    order = np.random.default_rng(0).permutation(len(x))
    cuts = np.cumsum((0, *CLASSES[name]))
    if cuts[-1] > len(x):
        raise Missing(f"{name} has {len(x)} rows instead of {cuts[-1]}")
    parts = {split: order[a:b] for split, a, b in zip(SPLITS, cuts[:-1], cuts[1:], strict=True)}
    mean, deviation = x[parts["train"]].mean(axis=0), x[parts["train"]].std(axis=0)
    scaled = ((x - mean) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return {split: (scaled[rows], y[rows]) for split, rows in parts.items()}


def load_values(name: str, root: Path, seed: int) -> dict[str, tuple[Array, Array]]:
    """Return (inputs, targets [N]) of 50/10/10/10/20 % splits drawn by `seed`, standardised by the training rows."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
    else:
        frame = _frame(root, "BostonHousing") if name == "boston" else _concrete(root)
        y = frame.pop("medv" if name == "boston" else "compressive_strength")
        frame.pop("b", None)  # of Boston a transformed share of black inhabitants; no model should need it
        x = np.stack([column.astype(np.float64) for column in frame.values()], axis=1)
    order = np.random.default_rng(seed).permutation(len(x))
    cuts = (len(x) * np.array([0.0, 0.5, 0.6, 0.7, 0.8, 1.0])).astype(int)
    parts = {split: order[a:b] for split, a, b in zip(SPLITS, cuts[:-1], cuts[1:], strict=True)}
    both = np.column_stack([x, y])
    mean, deviation = both[parts["train"]].mean(axis=0), both[parts["train"]].std(axis=0)
    scaled = ((both - mean) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return {split: (scaled[rows, :-1], scaled[rows, -1]) for split, rows in parts.items()}


def _fashion(folder: Path) -> tuple[Array, Array]:
    if not folder.is_dir():
        raise Missing(f"fashion-mnist: {folder} is missing; apt-get install dataset-fashion-mnist")
    images, labels = (
        gzip.decompress((folder / f"train-{name}-ubyte.gz").read_bytes()) for name in ("images-idx3", "labels-idx1")
    )
    x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784)[:10_000]
    return x.astype(np.float32), np.frombuffer(labels, np.uint8, offset=8)[:10_000].astype(np.int64)


def _mlbench(root: Path, name: str, target: str) -> tuple[Array, Array]:
    frame = _frame(root, name)
    _, y = np.unique(frame.pop(target), return_inverse=True)
    return np.stack([column.astype(np.float64) for column in frame.values()], axis=1), y


def _frame(root: Path, name: str) -> dict[str, Array]:
    path = root / MLBENCH / f"{name}.rda"
    if not path.is_file():
        raise Missing(f"{name}: {path} is missing; unpack Debian's r-cran-mlbench below {root}")
    return read_rda(path)[name]


def _concrete(root: Path) -> dict[str, Array]:
    folder = root / MODELDATA
    if not (folder / "Rdata.rdx").is_file():
        raise Missing(f"concrete: {folder} is missing; unpack Debian's r-cran-modeldata below {root}")
    return read_rdb(folder, "concrete")
