"""Members that are no torch modules: estimators, ONNX files, and any callable x [N, ...] -> predictions.

An estimator has `predict_proba` or `predict`, as scikit-learn's and LightGBM's have. What a model is kept as is up to
its factory: a function of the trial's parameters and a folder, which holds the files that were left with the model.
"""

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from trainwright.ensemble.export.onnx_file import OnnxModel
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

__all__ = ["FILES", "as_predictor", "is_module", "model_bytes", "open_onnx", "read_files"]

Predictor = Callable[[Array], Array]

FILES = "files/"  # in a member's folder: what was left beside it
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def is_module(model: object) -> bool:
    """Say whether a model is a torch module, without importing torch for it."""
    return any(kind.__module__.startswith("torch.") and kind.__name__ == "Module" for kind in type(model).__mro__)


def open_onnx(model: object, whose: str) -> object:
    """Return the callable of an ONNX file that is given by its path or bytes; any other model as it is."""
    if isinstance(model, str | Path):
        try:
            model = Path(model).read_bytes()
        except OSError as error:
            raise EnsembleError(
                f"{whose}: got {str(model)!r}, which cannot be read ({error.strerror}); allowed: a model, or the path "
                "of an ONNX file"
            ) from error
    return OnnxModel(model, whose=whose) if isinstance(model, bytes) else model


def as_predictor(model: object, output: str, columns: int | None, whose: str) -> Predictor:
    """Return what an estimator or a callable predicts for a batch, as an array whose shape is checked on each call.

    For classes it is `predict_proba`, whose columns are the classes 0, 1, ... in order; one column is the probability
    of class 1. `columns` are those of the predictions that were left; None does not check them.
    """
    names = ("predict_proba", "predict") if output == "classes" else ("predict",)
    function = next((getattr(model, name) for name in names if hasattr(model, name)), model)
    if not callable(function):
        raise EnsembleError(
            f"{whose}: got {type(model).__name__}; allowed: a torch module, an estimator with predict_proba or "
            "predict, the path of an ONNX file, or a callable x [N, ...] -> predictions"
        )
    known = getattr(model, "classes_", None)
    if output == "classes" and known is not None and list(known) != list(range(len(known))):
        raise EnsembleError(
            f"{whose}: its columns are of the classes {list(known)[:5]}; allowed: 0 to {len(known) - 1} in that order, "
            "as the targets count them; fit it with numpy.searchsorted(classes, y) as targets"
        )
    wanted = {"classes": 2, "values": 2, "moments": 3}[output]

    def predict(x: Array) -> Array:
        found = np.asarray(function(x))
        if output == "classes" and found.ndim == 1 and found.dtype.kind == "f":
            found = np.stack([1.0 - found, found], axis=1)
        if output in ("values", "moments") and found.ndim == wanted - 1:
            found = np.expand_dims(found, 1)
        shape = (len(x), *((columns,) if columns else found.shape[1:2]), *((2,) if output == "moments" else ()))
        if found.dtype.kind not in "fiu" or found.ndim != wanted or found.shape != shape:
            allowed = ", ".join(map(str, (len(x), columns or "C", *((2,) if output == "moments" else ()))))
            raise EnsembleError(
                f"{whose}: predicts {found.dtype} of shape {found.shape} for {len(x)} rows; allowed: numbers of shape "
                f"({allowed}), as the predictions that were left"
            )
        return found

    return predict


def read_files(files: Mapping[str, object]) -> dict[str, bytes]:
    """Return files by name, of bytes or of paths, as they lie in a member's folder."""
    found: dict[str, bytes] = {}
    for name, content in files.items():
        where = f"leave, files[{name!r}]"
        if not _NAME.fullmatch(name):
            raise EnsembleError(f"{where}: got this name; allowed: letters, digits, '.', '_' and '-', no folder")
        if isinstance(content, str | Path):
            try:
                content = Path(content).read_bytes()  # noqa: PLW2901 - from here on bytes
            except OSError as error:
                raise EnsembleError(f"{where}: {error.filename} cannot be read ({error.strerror})") from error
        if not isinstance(content, bytes):
            raise EnsembleError(f"{where}: got {type(content).__name__}; allowed: bytes, or the path of a file")
        found[FILES + name] = content
    return found


def model_bytes(model: object, files: Mapping[str, bytes]) -> int | None:
    """Return the bytes of what is kept of a model or, if nothing is, of its pickle; None if it has none."""
    if files:
        return sum(map(len, files.values()))
    try:
        return len(pickle.dumps(model))
    except Exception:  # noqa: BLE001 - whatever an object that cannot be pickled comes to raise
        return None
