"""A study of eight trials on the accelerator, one of them killed in the middle: the same results to the bit."""

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks._report import progress
from torch import nn
from torch.nn import functional

import trainwright as tw
from trainwright.ledger import DirectoryLedger

__all__ = ["run", "train"]

_TRIALS, _EPOCHS, _KILLED = 8, 4, 3


def train(trial: tw.Trial) -> None:
    """Train a network on drawn data; die once in the middle where a file asks for it."""
    torch.use_deterministic_algorithms(mode=True)
    device = trial.device
    torch.manual_seed(1)
    inputs, wanted = torch.randn(4096, 64, device=device), torch.randn(4096, 8, device=device)
    tw.train.seed_all(trial.number)
    model = nn.Sequential(nn.Linear(64, trial.params["width"]), nn.ReLU(), nn.Dropout(0.1),
                          nn.Linear(trial.params["width"], 8))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["lr"])
    run = trial.prepare(model, optimizer)
    for epoch in trial.epochs():
        for rows in torch.randperm(4096, generator=torch.Generator().manual_seed(epoch)).split(512):
            optimizer.zero_grad()
            functional.mse_loss(run.model(inputs[rows.to(device)]), wanted[rows.to(device)]).backward()
            optimizer.step()
        with torch.no_grad():
            run.model.eval()
            loss = functional.mse_loss(run.model(inputs), wanted)
            run.model.train()
        marker = Path(os.environ["GPU_STUDY_MARKER"])
        if trial.number == _KILLED and epoch == _EPOCHS // 2 and marker.exists():
            marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        trial.report(loss=float(loss))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the study whole, and with a death; compare every epoch of every trial."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "marker"
        os.environ["GPU_STUDY_MARKER"] = str(marker)
        whole, _ = _losses(Path(folder) / "whole", options)
        marker.touch()
        killed, devices = _losses(Path(folder) / "killed", options)
        lost = marker.exists()
    apart = sum(whole[number] != killed.get(number) for number in whole)
    return {
        "summary": {
            "gpu_study_results": len(killed),
            "gpu_study_killed": int(not lost),
            "gpu_study_trials_that_differ": apart,
        },
        "devices": sorted(devices),
        "losses": whole,
    }


def _losses(folder: Path, options: argparse.Namespace) -> tuple[dict[int, list[float]], set[str]]:
    """Return the losses of all epochs by trial, and where the trials ran."""
    progress(f"study: {folder.name}")
    space = tw.Space(lr=tw.Float(1e-4, 1e-2, log=True), width=tw.Int(32, 128, log=True))
    gpus = None if options.device == "cuda" else ()
    with tw.Study(space, "min loss", directory=folder, seed=0, searcher=tw.RandomSearcher()) as study:
        scheduler = tw.Scheduler(tw.FixedEpochs(_EPOCHS))
        study.run(train, trials=_TRIALS, scheduler=scheduler, engine=tw.Local(workers=2, gpus=gpus), progress=False)
        trials = study.state.trials
        found = {
            number: [each.metrics["loss"] for _, each in sorted(trial.reports.items())]
            for number, trial in trials.items()
            if trial.has_result
        }
    records, _ = DirectoryLedger(folder / "ledger").read()
    return found, {name for one in records for name in one.body.get("devices", ())}
