"""Resuming on the accelerator, bit for bit: a ResNet with augmentation noise, mixed precision, a scaler and Adam.

And saves beside a training that goes on: on a stream of its own, and with steps that a CUDA graph replays.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu._training import subjects
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import trainwright as tw

__all__ = ["run"]

_STEPS, _AT = 8, 4


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train whole, whole again, and interrupted; count the tensors that differ from the first."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    with tempfile.TemporaryDirectory() as folder:
        whole = _train(options, Path(folder) / "whole", _STEPS)
        again = _train(options, Path(folder) / "again", _STEPS)
        _train(options, Path(folder) / "cut", _AT)
        resumed = _train(options, Path(folder) / "cut", _STEPS)
    beside = {way: _saved_beside(options.device, way) for way in ("default", "stream", "graph")
              if options.device == "cuda" or way == "default"}  # fmt: skip
    apart = {name: sum(not torch.equal(whole[key], found[key]) for key in whole) for name, found in
             {"again": again, "resumed": resumed}.items()}  # fmt: skip
    return {
        "summary": {
            "gpu_resume_mismatches": apart["resumed"],
            "gpu_rerun_mismatches": apart["again"],
            **{f"gpu_save_mismatches_{way}": wrong for way, wrong in beside.items()},
        },
        "tensors": len(whole),
    }


def _saved_beside(device: str, way: str) -> int:
    """Save while the next steps are queued at once; return how many tensors are not what they were at the save."""
    cuda = device == "cuda"
    width, layers = (2048, 12) if cuda else (64, 2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=way == "graph")
    batch = torch.randn(1024, width, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    stream = torch.cuda.Stream() if way != "default" else None
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, torch.cuda.stream(stream):
        for _ in range(3):
            step()
        act = step
        if way == "graph":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                step()
            act = graph.replay
        with tw.checkpoint.Manager(Path(folder), model=model, optimizer=optimizer) as manager:
            for _ in range(3):
                for _ in range(5):
                    act()
                # Clones are queued behind the steps; nothing waits for the device before the save.
                then = {name: value.clone() for name, value in model.state_dict().items()}
                handle = manager.save()
                for _ in range(5):
                    act()
                    manager.count()
                saved = load_file(handle.committed.result().path / "rank-00000.safetensors")
                wrong += sum(not torch.equal(value.cpu(), saved[f"model.{name}"]) for name, value in then.items())
    return wrong


def _train(options: argparse.Namespace, folder: Path, until: int) -> dict[str, torch.Tensor]:
    tw.train.seed_all(0)
    model, batch = subjects(options.device, quick=True)["ResNet-50"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtype = torch.float16 if options.device == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(options.device, enabled=options.device == "cuda")
    labels = torch.arange(len(batch), device=options.device) % 10
    with tw.checkpoint.Manager(folder, model=model, optimizer=optimizer, scaler=scaler) as manager:
        manager.restore()
        while manager.steps < until:
            optimizer.zero_grad()
            with torch.autocast(options.device, dtype):
                noisy = batch + 0.1 * torch.randn_like(batch)  # draws of the device's own generator
                loss = functional.cross_entropy(functional.dropout(model(noisy), 0.1), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            manager.step()
        manager.save(wait=True)
    found = {f"model.{name}": each.detach().cpu().clone() for name, each in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": torch.as_tensor(each).cpu().clone() for name, each in moments.items()}
    return found
