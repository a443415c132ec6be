"""How long a save of a state on the accelerator stops a training, beside torch.save with fsync of the same state."""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu._training import seconds_of, synchronize
from torch import nn

from trainwright.checkpoint import CheckpointConfig, Manager, Retention

__all__ = ["run"]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Save and restore, in turns with torch."""
    device = options.device
    width, rounds = (256, 2) if options.quick else (2048, 7)
    layers = 2 if options.quick else 20  # 1 GB with Adam's moments
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh()))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = torch.randn(512, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    alone = seconds_of(step, device, 10)
    found: dict[str, list[float]] = {"torch.save": [], "blocking": [], "beside": [], "torch.load": [], "restore": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.pt"
        config = CheckpointConfig(interval=10**9, retention=Retention(last=1), on_error="raise")
        with Manager(Path(folder) / "manager", config=config, model=model, optimizer=optimizer) as manager:
            for number in range(rounds + 1):
                synchronize(device)
                begun = time.perf_counter()
                with file.open("wb") as opened:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, opened)
                    opened.flush()
                    os.fsync(opened.fileno())
                stopped = time.perf_counter() - begun
                handle = manager.save()
                beside = []
                while not handle.committed.done():
                    beside.append(_timed(step, device))
                    manager.step()
                handle.committed.result()
                loads = {
                    "torch.load": _timed(lambda: torch.load(file, map_location=device, weights_only=True), device),
                    "restore": _timed(lambda: manager.restore(check=False), device),
                }
                if number:  # the first allocates and imports
                    found["torch.save"].append(stopped)
                    found["blocking"].append(handle.blocking_seconds)
                    found["beside"] += beside
                    for name, seconds in loads.items():
                        found[name].append(seconds)
    middle = {name: statistics.median(each) for name, each in found.items() if each}
    return {
        "summary": {
            "gpu_blocking_over_torch_save": middle["blocking"] / middle["torch.save"],
            "gpu_blocking_ms": 1e3 * middle["blocking"],
            "gpu_restore_over_torch_load": middle["restore"] / middle["torch.load"],
            "gpu_step_beside_save_over_alone": middle.get("beside", alone) / alone,
        },
        "bytes": 12 * sum(each.numel() for each in model.parameters()),
        "seconds": found,
    }


def _timed(act: Any, device: str) -> float:
    synchronize(device)
    begun = time.perf_counter()
    act()
    synchronize(device)
    return time.perf_counter() - begun
