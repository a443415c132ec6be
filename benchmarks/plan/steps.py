"""Step time on two ranks of one thread each beside the oracle's prediction: DDP, ZeRO and pipelines, after calibration.

The two ranks calibrate this machine together, profile the model both at once, and train it by each plan in turn; of
every rank's steps the least counts, of the ranks the slowest. On a loaded machine the numbers say little: the load is
kept with them.

    python benchmarks/plan/steps.py --json [--results FILE]
"""

import argparse
import multiprocessing
import os
import socket
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch._dynamo  # here, else each rank loads it when it makes its first DDP
import torch.distributed as dist
from benchmarks._report import add_arguments, environment, finish, progress, table
from torch import nn

from trainwright.plan import Degrees, Oracle
from trainwright.profile import Profile
from trainwright.profile.calibrating import Place, calibrate, joined
from trainwright.train import parallelise

BATCH, WIDTH, DEPTH, STEPS = 256, 768, 8, 15
CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "data": ({"data": 2}, {}),
    "fsdp": ({"data": 2}, {"zero": 3}),
    "gpipe": ({"pipeline": 2}, {"micro": BATCH // 8, "schedule": "gpipe"}),
    "1f1b": ({"pipeline": 2}, {"micro": BATCH // 8, "schedule": "1f1b"}),
}


def measure(*, steps: int = STEPS, repeats: int = 25) -> list[dict[str, Any]]:
    """Return a row for each case: predicted and measured seconds of an iteration, and their relative difference."""
    ports = [_free_port() for _ in range(2)]  # a group each: one that joins anew could still meet the old one
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[Any] = context.Queue()
    members = [context.Process(target=_member, args=(rank, steps, repeats, ports, results)) for rank in range(2)]
    for process in members:
        process.start()
    rows: list[dict[str, Any]] = results.get(timeout=1800)
    for process in members:
        process.join()
    return rows


def _free_port() -> str:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _member(rank: int, steps: int, repeats: int, ports: list[str], results: Any) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = ports[0]
    here = Place(rank=rank, world=2, local_rank=rank, on_node=2, address="127.0.0.1")
    cluster = calibrate(here, repeats=repeats)
    os.environ["MASTER_PORT"] = ports[1]
    with joined(here, "gloo"):
        sample = _batch()
        profile = Profile.measured(_model(), sample, loss=_loss, optimizer="sgd")
        told: list[Any] = [cluster]
        dist.broadcast_object_list(told, 0)
        rows = []
        for name, (degrees, settings) in CASES.items():
            plan = Oracle(told[0]).estimate(
                profile, batch=BATCH, degrees=Degrees(**degrees), optimizer="sgd", **settings
            )
            seconds = _seconds(replace(plan, stages=()), sample, steps)
            predicted = plan.seconds_per_iteration
            rows.append(
                {
                    "case": name,
                    "predicted_seconds": predicted,
                    "measured_seconds": seconds,
                    "error": predicted / seconds - 1,
                    "load": os.getloadavg()[0],
                }
            )
            if not rank:
                progress(f"{name}: predicted {1e3 * predicted:.1f} ms, measured {1e3 * seconds:.1f} ms")
    if not rank:
        results.put(rows)


def _seconds(plan: Any, sample: Any, steps: int) -> float:
    """Return what a step takes: the least of this many, on the slowest rank."""
    model = parallelise(_model(), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    own = tuple(each.chunk(model.data_ranks)[model.data_rank] for each in sample)
    times = []
    for _ in range(steps + 3):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        model.backward(_loss, [(1.0, own)])
        optimizer.step()
        times.append(time.perf_counter() - begun)
    least = torch.tensor([min(times[3:])], dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MAX)
    return float(least)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    loss: torch.Tensor = (model(x) - y).square().mean()
    return loss


def main() -> None:
    """Measure, and say how far off the predictions are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    rows = measure()
    shown = [
        [
            row["case"],
            f"{1e3 * row['predicted_seconds']:.1f}",
            f"{1e3 * row['measured_seconds']:.1f}",
            f"{row['error']:+.1%}",
        ]
        for row in rows
    ]
    print(table(["plan on two ranks", "predicted ms", "measured ms", "difference"], shown))
    summary = {f"step_error_{row['case']}": row["error"] for row in rows}
    finish({"summary": summary, "rows": rows, "environment": environment()}, arguments)


if __name__ == "__main__":
    main()
