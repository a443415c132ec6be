"""Saves a model's predictions and weights to the library of its study: what a training function calls (`leave`)."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainwright.ensemble.export.onnx_file import OnnxModel, export_network
from trainwright.ensemble.library.callables import as_predictor, is_module, model_bytes, open_onnx, read_files
from trainwright.ensemble.library.cost import MemberCost, measure, measure_callable, sample_rows
from trainwright.ensemble.library.member import MEMBER_FILE, PROGRAM_FILE, SCHEMA, WEIGHTS_FILE, write_folder
from trainwright.ensemble.library.networks import LINKS, factory_name, serialise_weights
from trainwright.ensemble.library.predictions import SplitRows, check_sample, check_split
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, SplitOverlapError

if TYPE_CHECKING:
    import torch

    from trainwright.train import Trial

__all__ = ["leave"]


def leave(
    trial: "Trial",
    model: object | None = None,
    *,
    predictions: Mapping[str, Any],
    targets: Mapping[str, Any],
    sample: object | Callable[[], object] | None = None,
    rows: Mapping[str, Any] | None = None,
    data: str | None = None,
    factory: str | Callable[..., Any] | None = None,
    files: Mapping[str, bytes | str | Path] | None = None,
    link: str | None = None,
    export: bool = False,
    classes: Sequence[object] | None = None,
    snapshots: int = 1,
) -> Path:
    """Save this trial's predictions for the library, replacing earlier ones; returns the entry's folder.

    `predictions` holds per split ("selection", "test", ...) class probabilities [N, C] for integer `targets` [N], or
    real values [N] or [N, T] for float targets of that shape, or for those targets means and variances [N, 2] or
    [N, T, 2]; numpy arrays or torch tensors. `rows` gives the row ids [N] per split, unique over all splits; `data`
    names the data set, `classes` what the columns stand for. All trials must leave the same rows, and the same classes.

    `model` is a torch module, an estimator (scikit-learn, LightGBM), the path or bytes of an ONNX file, or any callable
    x [N, ...] -> predictions. Its bytes are recorded and, with a `sample` batch (or a function that makes one), its
    seconds per row at batch 128, once per trial.

    An ensemble can predict with members that are kept: an ONNX file is. Of a torch module, `factory`, a function of the
    trial's parameters (or its "module:function") that builds the network, keeps the weights too; `export` keeps it as
    an ONNX file instead, which needs a sample and no code of yours. Any other model needs both `factory` and `files`,
    bytes or paths by name, which are kept with digests and never read by us: factory(params, folder) loads the model
    from that folder. `link` says what makes predictions of an output: "softmax" (the default for classes of a network)
    or "identity".

    With `snapshots` the last so many entries of the trial stay, each a member of its own.

    Of a trial on several devices rank 0 leaves it. The entry is visible to others once the ledger has it; killed at any
    moment, this leaves either the new entry or the one before.
    """
    if data is not None and not isinstance(data, str):
        raise EnsembleError(f"leave, data: got {type(data).__name__}; allowed: a string that names the data set")
    if not isinstance(snapshots, int) or snapshots < 1:
        raise EnsembleError(f"leave, snapshots: got {snapshots!r}; allowed: an integer >= 1")
    # All checks come before anything is measured or written.
    splits = _check_splits(predictions, targets, rows or {})
    output, columns = splits[0].output, splits[0].predictions.shape[1]
    model = open_onnx(model, f"leave: the model of trial {trial.number}")
    _check_model(model, sample=sample, factory=factory, files=files, export=export)
    builder = None if factory is None else factory_name(factory)
    network = model is None or is_module(model)
    link = link or ("softmax" if output == "classes" and network else "identity")
    if link not in LINKS or (link == "softmax" and output != "classes"):
        allowed = ", ".join(LINKS) if output == "classes" else "identity"
        raise EnsembleError(f"leave, link: got {link!r} for predictions that are {output}; allowed: {allowed}")
    # Read on rank 0 alone: there may be no such files elsewhere.
    kept = (
        {}
        if trial.rank
        else _kept_files(trial, model, sample, files or {}, by_factory=builder is not None, export=export)
    )
    # Measured once per trial: the network does not change between epochs, only its weights.
    cost = _measure_cost(trial, model, sample, splits[0], link=link, kept=kept)
    epoch = trial.next_epoch
    contents, described = _split_files(splits, data)
    member = {
        "schema": SCHEMA,
        "trial": trial.number,
        "epoch": epoch,
        "params": dict(trial.params),
        "seed": trial.seed,
        "output": output,
        "columns": columns,
        "classes": None if classes is None else _class_names(classes, output, columns),
        "snapshots": snapshots,
        "data": data,
        "splits": described,
        "parameter_count": cost.parameter_count if cost else None,
        "weight_bytes": cost.weight_bytes if cost else None,
        "cost": [asdict(cost)] if cost and cost.seconds is not None else [],
        "factory": builder,
        "link": link,
    }
    # All ranks of a trial know where the entry lies; rank 0 alone writes it.
    parent, name = trial.library_directory(), f"epoch-{epoch:06d}"
    # Other ranks have the same predictions.
    if trial.rank:
        return parent / name
    contents |= kept
    member["files"] = {name: len(one) if isinstance(one, bytes) else one.nbytes for name, one in contents.items()}
    text = json.dumps(member, indent=1, allow_nan=False).encode()
    folder, digests = write_folder(parent, name, {**contents, MEMBER_FILE: text})
    # The ledger's record is what makes the entry visible: a crash before it leaves the earlier entry in force.
    trial.offer(folder, digests, epoch=epoch)
    # Only now: until the offer the ledger points to the epochs before.
    earlier = sorted((other for other in parent.iterdir() if other != folder), reverse=True)
    for other in earlier[snapshots - 1 :]:
        shutil.rmtree(other, ignore_errors=True)
    return folder


def _check_model(
    model: object,
    *,
    sample: object,
    factory: object,
    files: Mapping[str, object] | None,
    export: bool,
) -> None:
    for what, offered in (("sample", sample), ("factory", factory), ("files", files), ("export", export or None)):
        if offered is not None and model is None:
            raise EnsembleError(f"leave, {what}: got no model; allowed: both; pass the model as second argument")
    if files and factory is None:
        raise EnsembleError("leave, files: got no factory; allowed: both; factory(params, folder) loads the model")
    if export and sample is None:
        raise EnsembleError("leave, export: got no sample; allowed: both; it shows the input's shape")
    other = not (model is None or is_module(model) or isinstance(model, OnnxModel))
    if other and (export or (factory is not None and not files)):
        raise EnsembleError(
            f"leave, {'export' if export else 'factory'}: got a model that is {type(model).__name__}"
            f"{'' if export else ' and no files'}; allowed: a torch.nn.Module; pass others as an ONNX file, or give "
            "factory= and the files= that it loads the model from"
        )


def _kept_files(
    trial: "Trial",
    model: object,
    sample: object,
    files: Mapping[str, bytes | str | Path],
    *,
    by_factory: bool,
    export: bool,
) -> dict[str, bytes]:
    """Return the files that an ensemble predicts from, by name."""
    found = read_files(files)
    if isinstance(model, OnnxModel):
        found[PROGRAM_FILE] = model.content
    elif is_module(model):
        if by_factory:
            found[WEIGHTS_FILE] = serialise_weights(model)
        if export:
            whose = f"leave, export: the model of trial {trial.number}"
            found[PROGRAM_FILE] = export_network(cast("torch.nn.Module", model), sample, whose=whose)
    return found


def _class_names(classes: Sequence[object], output: str, columns: int) -> list[str]:
    """Return what the columns stand for, as text."""
    if output != "classes" or len(classes) != columns or len(set(map(str, classes))) != columns:
        raise EnsembleError(
            f"leave, classes: got {list(classes)[:5]} for predictions [N, {columns}] that are {output}; allowed: a "
            "name for each column of class probabilities, each once"
        )
    return list(map(str, classes))


def _check_splits(
    predictions: Mapping[str, Any], targets: Mapping[str, Any], rows: Mapping[str, Any]
) -> list[SplitRows]:
    if not predictions or set(predictions) != set(targets):
        got = f"predictions of {', '.join(predictions) or 'nothing'} and targets of {', '.join(targets) or 'nothing'}"
        raise EnsembleError(f"leave: got {got}; allowed: both for the same splits, at least one")
    for name in predictions:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise EnsembleError(f"leave, predictions: got split {name!r}; allowed: letters, digits, '_' and '-'")
    unknown = sorted(set(rows) - set(predictions))
    if unknown:
        raise EnsembleError(f"leave, rows: got split {unknown[0]!r}; allowed: {', '.join(predictions)}")
    splits = [check_split(name, predictions[name], targets[name], rows.get(name)) for name in predictions]
    first = splits[0]
    for index, split in enumerate(splits):
        shapes = [(one.output, one.predictions.shape[1]) for one in (first, split)]
        if shapes[0] != shapes[1]:
            (kind, columns), (other_kind, other) = shapes
            raise EnsembleError(
                f"leave, predictions: got {columns} columns ({kind}) for {first.name!r} and {other} ({other_kind}) for "
                f"{split.name!r}; allowed: equal columns in all splits"
            )
        # A row in two splits would let selection see what is to judge it.
        for earlier in splits[:index]:
            _refuse_overlap(earlier, split)
    return splits


def _refuse_overlap(one: SplitRows, other: SplitRows) -> None:
    if one.ids is None or other.ids is None:
        return
    both = np.intersect1d(one.ids, other.ids, assume_unique=True)
    if len(both):
        some = ", ".join(str(int(row)) for row in both[:5])
        raise SplitOverlapError(
            f"leave, rows: {one.name!r} and {other.name!r} share {len(both)} row ids ({some}); allowed: splits without "
            "common rows; give ids that are unique over all splits"
        )


def _measure_cost(
    trial: "Trial", model: object, sample: object | None, split: SplitRows, *, link: str, kept: Mapping[str, bytes]
) -> MemberCost | None:
    cost: MemberCost | None = trial.scratch.get("ensemble.cost")
    if model is None or (cost is not None and (cost.seconds is not None or sample is None)):
        return cost if model is not None else None
    if is_module(model):
        cost = measure(model, sample)
    else:
        whose = f"leave, model: the model of trial {trial.number}"
        columns = split.predictions.shape[1]
        predict = as_predictor(model, split.output, columns, whose)
        cost = measure_callable(predict, sample, model_bytes(model, kept))
        # What an ensemble would refuse to predict is refused while its training function is at hand.
        if sample is not None and link == "identity":
            check_sample(predict(sample_rows(sample)), split.output, whose)
    trial.scratch["ensemble.cost"] = cost
    return cost


def _split_files(
    splits: list[SplitRows], data: str | None
) -> tuple[dict[str, Array | bytes], dict[str, dict[str, Any]]]:
    files: dict[str, Array | bytes] = {}
    described: dict[str, dict[str, Any]] = {}
    for split in splits:
        files[f"{split.name}.f32"] = split.predictions.astype("<f4")
        if split.output == "classes":
            files[f"{split.name}.true.f32"] = split.true
        files[f"{split.name}.targets.{'i32' if split.output == 'classes' else 'f32'}"] = split.targets
        if split.ids is not None:
            files[f"{split.name}.rows.i64"] = split.ids
        count, columns = split.predictions.shape[:2]
        described[split.name] = {"rows": count, "columns": columns, "digest": split.digest(data)}
    return files, described
