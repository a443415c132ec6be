"""The oracle on the accelerator: the machine measured, then steps and peaks of traced models beside what they are."""

import argparse
from typing import Any

import torch
from benchmarks._report import progress
from benchmarks.gpu._training import peak_of, seconds_of, subjects
from torch import nn

from trainwright.cluster import Cluster
from trainwright.cluster.calibration.calibrate import calibrate
from trainwright.cluster.calibration.ranks import find_rank_place
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle

__all__ = ["run"]

_PRECISIONS = ("fp32", "amp-bf16")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Calibrate on one rank, predict, train."""
    cluster = calibrate(find_rank_place(None), devices=options.device, repeats=5 if options.quick else 25)
    assert cluster is not None  # rank 0 is all there is
    rows: list[dict[str, Any]] = []
    for name, make in subjects(options.device, quick=options.quick).items():
        for precision in _PRECISIONS:
            progress(f"predicting: {name}, {precision}")
            rows.append({"model": name, "precision": precision, **_compared(*make(), cluster, precision, options)})
            if options.device == "cuda":
                torch.cuda.empty_cache()
    known = [row for row in rows if row["measured_bytes"]]
    return {
        "summary": {
            "gpu_step_error_worst": max(abs(row["predicted_seconds"] / row["measured_seconds"] - 1) for row in rows),
            "gpu_traced_peak_error_worst": max(
                (abs(row["predicted_bytes"] / row["measured_bytes"] - 1) for row in known), default=None
            ),
        },
        "rows": rows,
        "device": {
            "flops": dict(cluster.device.flops),
            "efficiency": dict(cluster.device.efficiency),
            "memory_bandwidth": cluster.device.memory_bandwidth,
            "host_bandwidth": cluster.device.host_bandwidth,
        },
    }


def _compared(
    model: nn.Module, batch: torch.Tensor, cluster: Cluster, precision: str, options: argparse.Namespace
) -> dict[str, float]:
    """Return seconds and peak bytes of a training step, as the oracle says and as they are."""
    profile = Profile.trace(model, batch, loss=_loss, optimizer="momentum", precision=precision)
    plan = Oracle(cluster).estimate(
        profile, batch=len(batch), degrees=Degrees(data=1), precision=precision, optimizer="momentum"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        with torch.autocast(options.device, torch.bfloat16, enabled=precision != "fp32"):
            value = _loss(model, batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return {
        "predicted_seconds": plan.seconds_per_iteration,
        "measured_seconds": seconds_of(step, options.device, 3 if options.quick else 10),
        "predicted_bytes": float(profile.peak_bytes or 0),
        "measured_bytes": float(peak_of(step, options.device)),
    }


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return out.float().square().mean()
