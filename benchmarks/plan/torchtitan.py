"""Tokens a second and memory of torchtitan's published Llama runs, each predicted from a traced module.

The runs (GitHub `pytorch/torchtitan`, `benchmarks/`) are on H100 with 96 GB of HBM2e at 2.4 TB/s, held to 500 W, and on
H200. Every row goes the way that a user goes: trace the module, compiled or not, and ask the oracle for the degrees of
the row. What the reports do not say is torchtitan's default of the time: 8,192 positions, as many micro-batches as
pipeline stages, two chunks a stage where they interleave, gradients and weights kept whole beside a pipeline (ZeRO-1),
sequence parallelism with tensor parallelism, selective checkpointing by operator, a compiled loss from 2025 on.

Twice: with presets and assumptions as they are; and with five constants of the machine and its kernels fitted on the
H100 runs of the 8B model without context parallelism, which then predict contexts, 70B, 405B and H200. Memory has no
constant. Rows of float8 by rows of a matrix are left out: their report calls their baseline a defect.
"""

import csv
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.plan.fit import Fit, FitConstant, Floats, leave_out
from torch import Tensor, nn

from trainwright.cluster import Cluster
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Forecast, Oracle
from trainwright.plan.assumptions import Assumptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import llama

__all__ = ["CONSTANTS", "Run", "Scores", "plan_of", "profile_of", "read", "score"]

SEQUENCE, VOCABULARY, NODE, HBM2E = 8192, 128256, 8, 2.4e12
TRACED = 12  # equal layers that are traced; the others are counted

CONSTANTS = (
    FitConstant(name="linear", start=0.45, low=0.1, high=0.95),
    FitConstant(name="fp8", start=0.4, low=0.1, high=0.95),
    FitConstant(name="attention", start=0.35, low=0.1, high=0.95),
    FitConstant(name="nvlink", start=0.7, low=0.2, high=1.0),
    FitConstant(name="asynchronous", start=0.5, low=0.01, high=1.0),
)
"""Shares: of the peak by kind of layer, of NVLink's bandwidth, and of tensor exchanges that asynchronous ones hide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A row of a published table: what was trained how, tokens a second and GPU, and GiB reserved where they are."""

    table: str
    row: str
    model: str
    gpu: str
    devices: int
    sequence: int
    local: int
    """Samples of a data rank in an iteration."""
    tensor: int
    context: int
    pipeline: int
    chunks: int
    recompute: str
    compiled: bool
    loss_compiled: bool
    float8: str
    asynchronous: bool
    tokens: float
    gib: float | None

    @property
    def data(self) -> int:
        """Data ranks."""
        return self.devices // (self.tensor * self.context * self.pipeline)

    @property
    def fitted(self) -> bool:
        """Whether constants are fitted on it."""
        return (self.model, self.gpu, self.context) == ("8b", "h100", 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Rows in order, what was predicted of each, and what was left out."""

    runs: Sequence[Run]
    uncalibrated: Floats
    """Tokens a second and GPU with the presets as they are."""
    calibrated: Floats
    gib: Floats
    fit: Fit
    left_out: Mapping[str, int]

    @property
    def measured(self) -> Floats:
        """Tokens a second and GPU."""
        return np.array([run.tokens for run in self.runs])

    @property
    def held(self) -> Sequence[bool]:
        """Which rows no constant has seen."""
        return [not run.fitted for run in self.runs]

    def memory_errors(self) -> Floats:
        """Return the relative errors of the rows whose memory is published."""
        pairs = zip(self.runs, self.gib, strict=True)
        return np.array([gib / run.gib - 1 for run, gib in pairs if run.gib is not None])

    def ordered(self) -> float:
        """Return the share of pairs of rows of one table, of different speed, that are predicted in their order."""
        found = [
            (a.tokens - b.tokens) * (self.calibrated[i] - self.calibrated[j]) > 0
            for i, a in enumerate(self.runs)
            for j, b in enumerate(self.runs[:i])
            if a.table == b.table and a.tokens != b.tokens
        ]
        return float(np.mean(found))


def score(path: Path) -> Scores:
    """Predict every row of the table."""
    every = read(path)
    runs = [run for run in every if run.float8 != "rowwise"]
    measured = np.array([run.tokens for run in runs])

    def predict(values: Mapping[str, float]) -> Floats:
        return np.array([_tokens(run, plan_of(run, values)) for run in runs])

    fit, calibrated = leave_out(CONSTANTS, predict, measured, [not run.fitted for run in runs], starts=1)
    plain = [plan_of(run) for run in runs]
    return Scores(
        runs=runs,
        uncalibrated=np.array([_tokens(run, plan) for run, plan in zip(runs, plain, strict=True)]),
        calibrated=calibrated,
        gib=np.array([plan.reserved_bytes / 2**30 for plan in plain]),
        fit=fit,
        left_out={"float8 by rows, whose baseline its report calls a defect": len(every) - len(runs)},
    )


def plan_of(run: Run, values: Mapping[str, float] | None = None) -> Forecast:
    """Return the plan of a row, with the presets as they are or with fitted constants."""
    cluster = Cluster.preset(f"dgx-{run.gpu}", nodes=run.devices // NODE)
    assumptions = Assumptions(asynchronous={"tensor": 1.0} if run.asynchronous else {})
    if values is not None:
        bandwidth = HBM2E if run.gpu == "h100" else cluster.device.memory_bandwidth
        inside, *outside = cluster.tiers
        cluster = replace(
            cluster,
            device=replace(cluster.device, memory_bandwidth=bandwidth),
            tiers=(replace(inside, bandwidth=values["nvlink"] * inside.bandwidth), *outside),
        )
        assumptions = Assumptions(
            asynchronous={"tensor": values["asynchronous"]} if run.asynchronous else {},
            efficiency={name: values[name] for name in ("linear", "fp8", "attention")},
        )
    return Oracle(cluster, assumptions=assumptions).estimate(
        profile_of(run.model, run.sequence, fuse=run.compiled, loss_inside=run.loss_compiled),
        batch=run.local * run.data,
        degrees=Degrees(tensor=run.tensor, context=run.context, pipeline=run.pipeline, data=run.data),
        micro=run.local // run.pipeline,
        zero=1 if run.pipeline > 1 else 3,
        shard=run.data * run.context,
        sequence=run.tensor > 1,
        recompute=run.recompute,
        chunks=run.chunks,
        ring=True,
        precision="amp-fp8" if run.float8 else "amp-bf16",
    )


def _tokens(run: Run, plan: Forecast) -> float:
    return run.local * run.data * run.sequence / run.devices / plan.seconds_per_iteration


class WithLoss(nn.Module):
    """A model and its loss in one module, which is what compiling both comes to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss."""
        return llama.next_token_loss(self.model, (tokens,))


@functools.cache
def profile_of(size: str, sequence: int, *, fuse: bool, loss_inside: bool) -> Profile:
    """Return the profile of one sample of a Llama, of which a few layers are traced and the others counted."""
    layers, *shape = llama.SIZES[size]
    traced = min(TRACED, layers)
    with torch.device("meta"):
        model = llama.Llama((traced, *shape), VOCABULARY)  # type: ignore[arg-type]
        sample = (torch.empty(1, sequence + 1, dtype=torch.long),)
    if loss_inside:
        found = Profile.trace(WithLoss(model), sample, precision="bf16", fuse=fuse, name=size)
    else:
        found = Profile.trace(model, sample, loss=llama.next_token_loss, precision="bf16", fuse=fuse, name=size)
    blocks = tuple(
        replace(each, count=layers, members=(), begins=each.begins[:1] * layers) if each.count == traced else each
        for each in found.blocks
    )
    return replace(found, blocks=blocks, peak_bytes=None)


def read(path: Path) -> list[Run]:
    """Return the rows of the published tables."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            label, quantity = row["row"], row["quantity"]
            if quantity.startswith(("Vanilla", "Async")):
                how, _, quantity = quantity.partition(" TP ")
                label = f"{label}, {how}TP"
            if quantity != "speedup":
                found.setdefault((row["source"], row["table"], label), {})[quantity] = float(row["value"])
    return [_run(*key, values) for key, values in found.items() if values.keys() & {"TPS/GPU", "tokens/sec"}]


def _run(source: str, table: str, label: str, values: Mapping[str, float]) -> Run:
    text = f"{table}; {label}"
    if "h200" in source:  # the report's command says the rest, its table the nodes alone
        text = f"Llama 3 8b on {NODE * int(label)} GPUs, local batch size 2, torch.compile, Float8"
    late = "2025" in source or "2025" in table or "h200" in source

    def number(pattern: str, otherwise: int) -> int:
        match = re.search(pattern, text, re.IGNORECASE)
        return int(match[1]) if match else otherwise

    return Run(
        table=f"{source}: {table}",
        row=label,
        model="{}b".format(number(r"Llama ?3(?:[.]1)? (\d+)b", 8)),
        gpu="h200" if "h200" in source else "h100",
        devices=number(r"(\d+) (?:GPUs|H100s)", NODE),
        sequence=int(values.get("Sequence Length", SEQUENCE)),
        local=number(r"local batch size (\d+)", 1),
        tensor=number(r"TP[ =]?(\d+)", 1),
        context=number(r"CP[ =]?(\d+)", 1),
        pipeline=number(r"PP[ =]?(\d+)", 1),
        chunks=2 if "Interleaved" in text else 1,
        recompute="full" if "full a" in text.lower() else "operators",
        compiled="torch.compile" in text,
        loss_compiled=late,
        float8="rowwise" if "rowwise" in text else "tensorwise" if re.search("Float8|float8 t", text) else "",
        asynchronous="Async" in text,
        tokens=next(values[name] for name in ("TPS/GPU", "tokens/sec") if name in values),
        gib=values.get("Memory(GiB)"),
    )
