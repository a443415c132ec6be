"""Transformer steps: seconds of tensor, data and pipeline parallel training, many runs in columns, for fitting.

A block's forward pass on t of the tensor ranks, for b sequences of s tokens of width h with a heads:

    matrices    24 b s h^2 / t operations at rate R w / (w + w0), w = b s h^2 / t: small products do not fill a device
    attention   4 b s^2 h / t operations at a rate of its own
    the rest    2 b s h (18 + 24 / t) + 12 a b s^2 / t bytes at the memory's rate (arXiv 2205.05198, section 4)

and twice that backward. Two all-reduces of 2 b s h bytes forward and two backward (arXiv 1909.08053); full
recomputation adds a forward pass. The host waits for none of this, but takes its time to launch it: the device waits
where that is longer, and a block takes the p-norm of both. Pipelines follow 1F1B: S slots of the last stage, which has
the head, and p - 1 of a stage without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.plan.fit import FitConstant
from numpy.typing import NDArray

from trainwright.errors import InputError

__all__ = ["COLUMNS", "NETWORK_CONSTANTS", "SERVER_CONSTANTS", "TransformerSteps", "transformer_seconds"]

Floats = NDArray[np.float64]

COLUMNS = ("devices", "batch", "micro", "hidden", "heads", "layers", "sequence", "tensor", "data", "pipeline")
"""Fields of `TransformerSteps` that have one entry a run."""

SERVER_CONSTANTS = (
    FitConstant(name="matrix_rate", start=2.2e14, low=5e13, high=3.12e14),
    FitConstant(name="matrix_work", start=4e9, low=1e7, high=1e11),
    FitConstant(name="attention_rate", start=1e14, low=5e12, high=3.12e14),
    FitConstant(name="memory_rate", start=1.3e12, low=2e11, high=2.04e12),
    FitConstant(name="launch_seconds", start=1e-3, low=1e-4, high=6e-3),
    FitConstant(name="unfused_seconds", start=8e-4, low=1e-5, high=5e-3),
    FitConstant(name="collective_seconds", start=2e-4, low=1e-6, high=5e-3),
    FitConstant(name="logit_passes", start=6.0, low=1.0, high=60.0),
    FitConstant(name="node_alpha", start=2e-5, low=1e-6, high=1e-3),
    FitConstant(name="node_beta", start=1 / 150e9, low=1 / 300e9, high=1 / 10e9),
    FitConstant(name="send_seconds", start=2e-5, low=1e-7, high=1e-2),
    FitConstant(name="overhead_seconds", start=5e-3, low=1e-5, high=1e-1),
)
"""What one server tells: its devices, its host, the links inside."""
NETWORK_CONSTANTS = (
    FitConstant(name="network_alpha", start=3e-5, low=1e-6, high=1e-2),
    FitConstant(name="network_beta", start=1 / 20e9, low=1 / 200e9, high=1 / 1e9),
    FitConstant(name="network_shared_beta", start=1 / 20e9, low=1 / 300e9, high=1 / 1e9),
)
"""What only several servers tell: sends and sums of gradients, and sums of activations over more than a server."""

_ROUNDNESS = 6.0  # of the p-norm between device and host
_UPDATE_BYTES = 28  # a parameter: weights, gradients and Adam's state, read and written
_EVEN = 4  # a fused softmax kernel wants a multiple of so many heads times sequences


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformerSteps:
    """Runs in columns, one entry each; `devices` = tensor * data * pipeline."""

    devices: Floats
    batch: Floats
    micro: Floats
    hidden: Floats
    heads: Floats
    layers: Floats
    sequence: Floats
    tensor: Floats
    data: Floats
    pipeline: Floats
    vocabulary: int = 51200
    recompute: bool = False
    per_node: int = 8

    def __post_init__(self) -> None:
        for name in COLUMNS:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or values.shape != np.shape(self.devices) or not np.all(values >= 1):
                raise InputError(f"TransformerSteps.{name}: got {values.tolist()!r}; allowed: numbers >= 1, one a run")
            object.__setattr__(self, name, values)
        if not np.array_equal(self.devices, self.tensor * self.data * self.pipeline):
            raise InputError(
                f"TransformerSteps.devices: got {self.devices.tolist()!r}; allowed: tensor * data * pipeline"
            )

    def take(self, rows: Any) -> "TransformerSteps":
        """Return some of the runs."""
        some = {name: getattr(self, name)[rows] for name in COLUMNS}
        return TransformerSteps(**some, vocabulary=self.vocabulary, recompute=self.recompute, per_node=self.per_node)


def transformer_seconds(values: Mapping[str, float], runs: TransformerSteps) -> Floats:
    """Return the seconds of an iteration of every run, from values of both groups of constants."""
    r = runs
    tokens = r.micro * r.sequence
    passes = 4.0 if r.recompute else 3.0
    work = tokens * r.hidden**2 / r.tensor
    matrices = passes * 24 * work / values["matrix_rate"] * (1 + values["matrix_work"] / work)
    attention = passes * 4 * tokens * r.sequence * r.hidden / r.tensor / values["attention_rate"]
    moved = 2 * tokens * r.hidden * (18 + 24 / r.tensor) + 12 * r.heads * tokens * r.sequence / r.tensor
    device = matrices + attention + passes * moved / values["memory_rate"]
    even = (r.heads / r.tensor * r.micro) % _EVEN == 0
    host = passes / 3 * (values["launch_seconds"] + np.where(even, 0.0, values["unfused_seconds"]))
    host += (passes - 1) / 2 * np.where(r.tensor > 1, values["collective_seconds"], 0.0)  # of a block's
    device += 2 * (passes - 1) * _sum_of_activations(values, r, 2 * tokens * r.hidden)
    block = (device**_ROUNDNESS + host**_ROUNDNESS) ** (1 / _ROUNDNESS)
    logits = tokens * r.vocabulary / r.tensor
    head = 6 * logits * r.hidden / values["matrix_rate"] + 4 * logits * values["logit_passes"] / values["memory_rate"]
    slots = r.batch / r.data / r.micro
    stage = r.layers / r.pipeline * block
    parameters = (12 * r.hidden**2 * r.layers / r.pipeline + r.vocabulary * r.hidden) / r.tensor
    total: Floats = (
        slots * (stage + head)
        + (r.pipeline - 1) * stage
        + _sends(values, r, slots, 2 * tokens * r.hidden)
        + _sum_of_gradients(values, r, 2 * parameters)
        + _UPDATE_BYTES * parameters / values["memory_rate"]
        + values["overhead_seconds"]
    )
    return total


def _sum_of_activations(values: Mapping[str, float], r: TransformerSteps, size: Floats) -> Floats:
    """Return the seconds of an all-reduce among the tensor ranks: a ring, on the network if a server is too small."""
    inside = r.tensor <= r.per_node
    alpha, beta = _link(values, inside, "network_shared_beta")
    return np.where(r.tensor > 1, 2 * (r.tensor - 1) * (alpha + size * beta / r.tensor), 0.0)


def _sum_of_gradients(values: Mapping[str, float], r: TransformerSteps, size: Floats) -> Floats:
    """Return the seconds of an all-reduce among the data ranks, whose rings share the links of a server."""
    inside = r.tensor * r.data <= r.per_node
    alpha, beta = _link(values, inside, "network_beta")
    sharing = np.where(inside, 1.0, np.minimum(r.tensor, r.per_node))
    return np.where(r.data > 1, 2 * (r.data - 1) * (alpha + size * beta * sharing / r.data), 0.0)


def _sends(values: Mapping[str, float], r: TransformerSteps, slots: Floats, size: Floats) -> Floats:
    """Return the seconds of the transfers between stages: one forward and one backward a slot, filling included.

    Between servers each tensor rank sends its part (arXiv 2104.04473, section 4.1), all devices of a server at once
    through its links: the fewer the tensor ranks, the more replicas send beside each other.
    """
    inside = r.devices <= r.per_node
    _, beta = _link(values, inside, "network_beta")
    replicas = np.where(inside, 1.0, np.minimum(r.per_node, r.tensor * r.data) / r.tensor)
    each = values["send_seconds"] + size * beta * replicas
    return np.where(r.pipeline > 1, 2 * (slots + r.pipeline - 1) * each, 0.0)


def _link(values: Mapping[str, float], inside: NDArray[np.bool_], beta: str) -> tuple[Floats, Floats]:
    """Return alpha and beta of links inside a server or between; runs inside need no constants of the network."""
    far_alpha, far_beta = values.get("network_alpha", np.nan), values.get(beta, np.nan)
    return np.where(inside, values["node_alpha"], far_alpha), np.where(inside, values["node_beta"], far_beta)
