"""The protocol's metadata of the one ensemble: configuration, statistics, and the index of models."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.serve.http.infer_reply import VERSION
from trainwright.serve.http.infer_request import INPUT, Signature
from trainwright.serve.http.metrics import Metrics

__all__ = ["PLATFORM", "config", "inputs_and_outputs", "repository", "statistics"]

PLATFORM = "trainwright_ensemble"


def inputs_and_outputs(signature: Signature, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the tensors of the protocol's metadata; -1 stands for any size. `kind` is the ensemble's output."""
    shape = [-1] if signature.shape is None else [-1, *signature.shape]
    inputs = [{"name": INPUT, "datatype": signature.datatype, "shape": shape}]
    outputs = [
        {
            "name": name,
            "datatype": "BOOL" if name == "out_of_range" else "FP64",
            "shape": signature.output_shape(name, kind),
        }
        for name in signature.outputs
    ]
    return inputs, outputs


def config(name: str, signature: Signature, kind: str, *, rows: int) -> Mapping[str, Any]:
    """Return the model configuration: the same tensors, without their first dimension, of at most `rows`."""
    inputs, outputs = inputs_and_outputs(signature, kind)
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": "trainwright",
        "max_batch_size": rows,
        "input": [_configure_tensor(each) for each in inputs],
        "output": [_configure_tensor(each) for each in outputs],
    }


def statistics(name: str, metrics: Metrics) -> Mapping[str, Any]:
    """Return counts and seconds of the inference requests so far; computing includes the wait for it."""
    phases = metrics.phases()
    answered, rows = phases["answer"][0], metrics.totals()["rows"]
    parts = {"compute_input": "parse", "compute_infer": "answer", "compute_output": "reply"}
    told = {
        "success": _format_duration(answered, sum(seconds for _, seconds in phases.values())),
        "fail": _format_duration(*metrics.failed()),
        **{part: _format_duration(*phases[phase]) for part, phase in parts.items()},
    }
    one = {
        "name": name,
        "version": VERSION,
        "last_inference": int(metrics.last_seconds * 1e3),
        "inference_count": rows,
        "execution_count": answered,
        "inference_stats": told,
        "batch_stats": [],
    }
    return {"model_stats": [one]}


def repository(name: str, *, ready: bool) -> Sequence[Mapping[str, Any]]:
    """Return the index of all models there are: this one."""
    why = "" if ready else "it starts, ends, or has too few members left"
    return [{"name": name, "version": VERSION, "state": "READY" if ready else "UNAVAILABLE", "reason": why}]


def _configure_tensor(tensor: Mapping[str, Any]) -> dict[str, Any]:
    # A row that is one number has no dimension behind the first; the protocol wants one all the same.
    return {"name": tensor["name"], "data_type": f"TYPE_{tensor['datatype']}", "dims": tensor["shape"][1:] or [1]}


def _format_duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}
