"""How long training stands still when a trial changes its devices: 100 million parameters on one process and on two.

A policy that follows a list grows a trial from one device to two and back, twice, on `tw.Local`. Each rank logs its
steps. The pause is from the end of the last step before to the start of the first step after; the checkpoint that every
report saves is part of it. The change is from the policy's wish to the end of the first step on the new devices.

    python benchmarks/schedule/resize.py --json [--width 4096] [--results FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table

import trainwright as tw
from trainwright.schedule import DeviceAllocator
from trainwright.schedule.policies.resizing import Resizing

DEPTH, BATCH, STEPS = 6, 8, 4
SIZES = {2: 2, 4: 1, 6: 2, 8: 1}
"""The devices after an epoch; an epoch in between lets the trial go back to training."""
EPOCHS = 9
OPTIMIZERS = ("sgd", "adamw")
HEADER = ("optimizer, ranks", "pause, s", "of it checkpoint, s", "from wish to first step, s", "a step before, s")


@dataclass(frozen=True, kw_only=True)
class Listed(Resizing):
    """Changes the devices of a trial after the epochs in `SIZES`, and keeps when it wished so."""

    wishes: list[tuple[float, int, int]] = field(default_factory=list)

    def planner(self) -> "Listed":
        """Return itself."""
        return self

    def plan(self, allocator: DeviceAllocator) -> None:
        """Start the trial, and resize it at its reports."""
        while not allocator.running and allocator.start_next():
            pass
        running = allocator.changed
        if running is not None and running.epoch in SIZES and running.is_settled:
            before, after = running.size, SIZES[running.epoch]
            if allocator.resize(running, after):
                self.wishes.append((time.time(), before, after))


def train(trial: tw.Trial) -> None:
    """Train a perceptron, and log when steps and reports begin and end."""
    import torch

    width = trial.params["width"]
    layers = [torch.nn.Linear(width, width) for _ in range(DEPTH)]
    model = torch.nn.Sequential(*(module for layer in layers for module in (layer, torch.nn.ReLU())))
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[trial.params["optimizer"]]
    settings = {"momentum": 0.9} if trial.params["optimizer"] == "sgd" else {}
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * BATCH, width))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    optimizer = kind(model.parameters(), lr=1e-4, **settings)
    run = trial.prepare(model, optimizer, loader, loss=lambda model, batch: model(batch[0]).square().mean())
    with (trial.folder.parent.parent / f"log-{trial.rank}").open("a") as log:

        def write(what: str, began: float) -> None:
            print(json.dumps({"what": what, "began": began, "ended": time.time()}), file=log, flush=True)

        for epoch in trial.epochs():
            for batch in run.loader:
                began = time.time()
                run.step(batch)
                write("step", began)
            began = time.time()
            try:
                trial.report(loss=1 / epoch)
            finally:
                write("report", began)


def measure(optimizer: str, width: int) -> list[dict[str, Any]]:
    """Return the times of each change in one trial."""
    space = tw.Space(optimizer=tw.Constant(optimizer), width=tw.Constant(width), x=tw.Float(0, 1))
    policy = Listed()
    with tempfile.TemporaryDirectory() as folder:
        study = tw.Study(space, "min loss", directory=folder, seed=0, searcher=tw.RandomSearcher())
        scheduler = tw.Scheduler(tw.FixedEpochs(EPOCHS), policy)
        with study:
            study.run(train, trials=1, scheduler=scheduler, engine=tw.Local(workers=2, gpus=()), progress=False)
        logs = [path.read_text().splitlines() for path in sorted(Path(folder).glob("log-*"))]
    lines = [[json.loads(line) for line in log] for log in logs]
    steps = [line for log in lines for line in log if line["what"] == "step"]
    found = []
    for wished, before, after in policy.wishes:
        last = max((step for step in steps if step["ended"] < wished), key=lambda step: step["ended"])
        first = min((step for step in steps if step["began"] > wished), key=lambda step: step["began"])
        report = next(one for one in lines[0] if one["what"] == "report" and one["began"] < wished < one["ended"])
        found.append(
            {
                "ranks": f"{before} to {after}",
                "pause": first["began"] - last["ended"],
                "save": wished - report["began"],
                "change": first["ended"] - wished,
                "step": last["ended"] - last["began"],
            }
        )
    return found


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure the changes with each optimizer, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=4096, help="of a layer; the model has 6 of its square")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows: list[list[str]] = []
    summary: dict[str, float] = {}
    for optimizer in OPTIMIZERS:
        for number, times in enumerate(measure(optimizer, arguments.width)):
            ranks = times["ranks"]
            rows.append(
                [
                    f"{optimizer}, {ranks}, {'first' if number < len(SIZES) // 2 else 'again'}",
                    *(f"{times[name]:.1f}" for name in ("pause", "save", "change", "step")),
                ]
            )
            progress(" ".join(rows[-1]))
            for name in ("pause", "save", "change"):
                key = f"{name}_seconds_{optimizer}_{ranks.replace(' ', '_')}"
                summary[key] = max(summary.get(key, 0.0), times[name])
    print(table(HEADER, rows))
    result = {
        "benchmark": "schedule_resize",
        "environment": environment(),
        "summary": {
            "parameters": DEPTH * (arguments.width + 1) * arguments.width,
            "load_average": os.getloadavg()[1],
            **summary,
        },
        "table": {"header": HEADER, "rows": rows},
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
