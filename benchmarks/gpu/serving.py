"""Serving on the accelerator and a processor: allocation by measured times, answers, overhead."""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks._report import progress
from benchmarks.serve._ensembles import INPUTS, core, ensemble, plan

from trainwright.serve import Deployment, allocate
from trainwright.serve.placement.units import Unit

__all__ = ["run"]

_ROWS = 128


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Allocate over the GPU and one core, then serve four equal members by one process."""
    width, calls = (64, 5) if options.quick else (2048, 200)
    x = torch.randn(_ROWS, INPUTS, generator=torch.Generator().manual_seed(0)).numpy()
    first = "cuda:0" if options.device == "cuda" else core()
    devices = f"cuda:0,{core()}" if options.device == "cuda" else core()
    with tempfile.TemporaryDirectory() as folder:
        equal = ensemble(Path(folder) / "equal", [{"width": width, "depth": 3}] * 4)
        mixed = ensemble(
            Path(folder) / "mixed", [{"width": width // divided, "depth": 3} for divided in (1, 1, 2, 2, 8, 8)]
        )
        progress("serving: allocation")
        placed = allocate(mixed, devices, batches=(8, 32, 128))
        rows = {"allocated": _served(mixed, placed, x, calls)}
        progress("serving: loop")
        unit = Unit(members=(0, 1, 2, 3))
        rows["loop"] = _served(equal, plan(equal, units=(unit,), devices=first), x, calls)
    return {
        "summary": {
            "gpu_serving_difference_worst": max(row["difference"] for row in rows.values()),
            "gpu_overhead_percent_128": 100 * (rows["loop"]["seconds"] / rows["loop"]["bare_seconds"] - 1),
            **{f"gpu_rows_per_second_{kind}": row["rows_per_second"] for kind, row in rows.items()},
        },
        "rows": rows,
        "expected": dict(placed.expected),
        "matrix": [list(row) for row in placed.matrix],
    }


def _served(found: Any, placed: Any, x: Any, calls: int) -> dict[str, float]:
    device = str(placed.devices[0].name)
    with Deployment(found, placed) as service:
        answers = service.predict(x)
        begun = time.perf_counter()
        for _ in range(calls):
            service.predict(x)
        seconds = (time.perf_counter() - begun) / calls
    bare = _bare(found, x, calls, "cuda:0" if device.startswith("cuda") else "cpu")
    return {
        "seconds": seconds,
        "bare_seconds": bare,
        "rows_per_second": len(x) / seconds,
        "difference": float(np.abs(answers - found.predict(x)).max()),
    }


def _bare(found: Any, x: Any, calls: int, device: str) -> float:
    """Return the seconds of the same members called in turn, here."""
    for _ in range(3):
        found.predict(x, device=device)
    begun = time.perf_counter()
    for _ in range(calls):
        found.predict(x, device=device)
    return (time.perf_counter() - begun) / calls
