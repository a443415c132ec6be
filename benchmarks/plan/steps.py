"""Step time on two ranks of one thread each beside the oracle's prediction: DDP, ZeRO and pipelines, after calibration.

The two ranks calibrate this machine together. Then they visit all models several times: profile one both at once, set
it up by each plan and train it. Of every rank's steps in all visits the median counts, of the ranks the slowest; of
the predictions the median. On a loaded machine the numbers say little: what others used of the processors is kept with
them, and steps beside which they used more than a tenth of one are taken anew.

    python benchmarks/plan/steps.py --json [--models wide,narrow,...] [--results FILE]
"""

import argparse
import itertools
import multiprocessing
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch._dynamo  # here, else each rank loads it when it makes its first DDP
import torch.distributed as dist
from benchmarks._report import add_arguments, environment, finish, progress, table
from torch import nn

from trainwright.cluster import Cluster
from trainwright.cluster.calibration.calibrate import calibrate
from trainwright.cluster.calibration.ranks import RankPlace, join_process_group
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle
from trainwright.train import parallelise

STEPS, VISITS, MICROBATCHES = 30, 5, 8
MOST_OF_OTHERS, TRIES = 0.1, 3
CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "data": ({"data": 2}, {}),
    "fsdp": ({"data": 2}, {"zero": 3}),
    "gpipe": ({"pipeline": 2}, {"schedule": "gpipe"}),
    "1f1b": ({"pipeline": 2}, {"schedule": "1f1b"}),
}


class _Block(nn.Module):
    """A transformer's block of this width, with heads of 32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.queries(self.norms[0](x)).view(batch, length, 3, -1, 32).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return cast("torch.Tensor", x + self.inner(self.norms[1](x)))


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())))


def _convolutions() -> nn.Module:
    sizes = (3, 32, 64, 64, 128)
    layers = [
        layer
        for before, after in itertools.pairwise(sizes)
        for layer in (nn.Conv2d(before, after, 3, stride=1 + (after > before), padding=1), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "wide": (lambda: _perceptron(768), (256, 768), (256, 768)),
    "narrow": (lambda: _perceptron(256), (256, 256), (256, 256)),
    "wider": (lambda: _perceptron(1024), (128, 1024), (128, 1024)),
    "convolutions": (_convolutions, (64, 3, 32, 32), (64, 10)),
    "transformer": (lambda: nn.Sequential(*(_Block(192) for _ in range(4))), (16, 64, 192), (16, 64, 192)),
}
"""How each is made, and the shapes of its batch and targets."""


def measure(models: Sequence[str], *, steps: int = STEPS, repeats: int = 25) -> list[dict[str, Any]]:
    """Return a row for each model and case: predicted and measured seconds of an iteration, and how far these differ.

    All models are planned with one calibration.
    """
    ports = [_free_port() for _ in range(2)]  # a group each: one that joins anew could still meet the old one
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[Any] = context.Queue()
    members = [
        context.Process(target=_member, args=(rank, models, steps, repeats, (ports, results))) for rank in range(2)
    ]
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


def _member(rank: int, models: Sequence[str], steps: int, repeats: int, links: tuple[list[str], Any]) -> None:
    ports, results = links
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = ports[0]
    here = RankPlace(rank=rank, world=2, local_rank=rank, on_node=2, address="127.0.0.1")
    cluster = calibrate(here, repeats=repeats)
    os.environ["MASTER_PORT"] = ports[1]
    with join_process_group(here, "gloo"):
        told: list[Any] = [cluster]
        dist.broadcast_object_list(told, 0)
        visits = []
        for visit in range(VISITS):
            if not rank:
                progress(f"visit {visit + 1} of {VISITS}")
            visits.append([each for name in models for each in _visited(name, told[0], -(-steps // VISITS))])
    if not rank:
        results.put([_row(each) for each in zip(*visits, strict=True)])


def _visited(name: str, cluster: Cluster, steps: int) -> list[dict[str, Any]]:
    """Return for each case what is predicted with a profile of now, and this many steps of a training set up now."""
    sample = _batch(name)
    batch = len(sample[0])
    profile = Profile.measured(_model(name), sample, loss=_loss, optimizer="sgd")
    found = []
    for case, (degrees, settings) in CASES.items():
        micro = batch // (MICROBATCHES if "pipeline" in degrees else 2)
        plan = Oracle(cluster).estimate(
            profile, batch=batch, degrees=Degrees(**degrees), optimizer="sgd", micro=micro, **settings
        )
        told = [plan]
        dist.broadcast_object_list(told, 0)  # a profile of each rank, but one plan
        plan = told[0]
        seconds, others = _seconds(
            name, replace(plan, stages=_modules(plan.stages, profile, _model(name))), sample, steps
        )
        found.append({"model": name, "case": case, "plan": plan, "seconds": seconds, "others": others})
    return found


def _row(visits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a model's row for one case: the visit of the median prediction, beside the median of all steps."""
    plans = sorted((each["plan"] for each in visits), key=lambda plan: plan.seconds_per_iteration)
    plan = plans[len(plans) // 2]
    medians = [_slowest_median([each["seconds"]]) for each in visits]
    seconds = _slowest_median([each["seconds"] for each in visits])
    (low, high), others = plan.interval, max(each["others"] for each in visits)
    row = {
        "model": visits[0]["model"],
        "case": visits[0]["case"],
        "predicted_seconds": plan.seconds_per_iteration,
        "interval": plan.interval,
        "breakdown": asdict(plan.breakdown),
        "measured_seconds": seconds,
        "predicted_seconds_of_visits": [each["plan"].seconds_per_iteration for each in visits],
        "measured_seconds_of_visits": medians,
        "error": plan.seconds_per_iteration / seconds - 1,
        "inside": low <= seconds <= high,
        "processors_of_others": others,
    }
    predicted = f"{1e3 * plan.seconds_per_iteration:.1f} ({1e3 * low:.1f} to {1e3 * high:.1f})"
    visited = ", ".join(f"{1e3 * each:.1f}" for each in medians)
    progress(
        f"{row['model']}, {row['case']}: predicted {predicted} ms, measured {1e3 * seconds:.1f} ({visited}) ms, "
        f"{row['error']:+.1%}, others {others:.2f}"
    )
    return row


def _slowest_median(visits: Sequence[list[list[float]]]) -> float:
    """Return the median of a rank's steps in all visits, of the slowest rank."""
    return max(float(statistics.median(itertools.chain(*times))) for times in zip(*visits, strict=True))


def _modules(stages: Sequence[int], profile: Profile, model: nn.Module) -> tuple[int, ...]:
    """Return the modules of each stage of a sequence whose chain, the loss included, is cut into so many blocks each.

    A cut inside of a module, where no pipeline of modules can have one, goes before it.
    """
    blocks = [name for block in profile.blocks for name in (block.members or (block.name,))]
    starts = [int(re.split(r"\D", blocks[end])[0]) for end in itertools.accumulate(stages[:-1])]
    ends = [*starts, len(list(model.children()))][: len(stages)]
    return tuple(after - before for before, after in itertools.pairwise([0, *ends]))


def _seconds(name: str, plan: Any, sample: Any, steps: int) -> tuple[list[list[float]], float]:
    """Return what each of these steps took on each rank, and how many processors others used meanwhile."""
    model = parallelise(_model(name), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    own = tuple(each.chunk(model.data_ranks)[model.data_rank] for each in sample)
    found: list[tuple[list[list[float]], float]] = []
    while not found or (found[-1][1] > MOST_OF_OTHERS and len(found) < TRIES):
        times, begun, ours, busy = [], time.perf_counter(), time.process_time(), _busy_seconds()
        for _ in range(steps + 3):
            dist.barrier()
            before = time.perf_counter()
            optimizer.zero_grad()
            model.backward(_loss, [(1.0, own)])
            optimizer.step()
            times.append(time.perf_counter() - before)
        used = torch.tensor([time.process_time() - ours], dtype=torch.float64)
        dist.all_reduce(used)
        others = max(0.0, (_busy_seconds() - busy - float(used)) / (time.perf_counter() - begun))
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (times[3:], others))
        found.append(([each for each, _ in ranks], max(each for _, each in ranks)))
    return min(found, key=lambda each: each[1])


def _busy_seconds() -> float:
    """Return the seconds that all processors of this machine have worked since it started, 0 where it does not say."""
    if not Path("/proc/stat").exists():
        return 0.0
    ticks = [int(each) for each in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]()


def _batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    _, inputs, targets = MODELS[name]
    return torch.randn(inputs, generator=generator), torch.randn(targets, generator=generator)


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    loss: torch.Tensor = (model(x) - y).square().mean()
    return loss


def main() -> None:
    """Measure, and say how far off the predictions are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="which, with commas")
    add_arguments(parser)
    arguments = parser.parse_args()
    models = arguments.models.split(",")
    unknown = [name for name in models if name not in MODELS]
    if unknown:
        parser.error(f"--models: got {unknown[0]!r}; allowed: {', '.join(MODELS)}")
    rows = measure(models)
    header = ["model", "plan on two ranks", "predicted ms", "interval", "measured ms", "difference"]
    shown = [
        [
            row["model"],
            row["case"],
            f"{1e3 * row['predicted_seconds']:.1f}",
            "{:.1f} to {:.1f}".format(*(1e3 * end for end in row["interval"])),
            f"{1e3 * row['measured_seconds']:.1f}",
            f"{row['error']:+.1%}",
        ]
        for row in rows
    ]
    print(table(header, shown))
    summary: dict[str, Any] = {f"step_error_{row['model']}_{row['case']}": row["error"] for row in rows}
    summary["step_error_worst"] = max(abs(row["error"]) for row in rows)
    summary["step_within_15_percent"] = sum(abs(row["error"]) <= 0.15 for row in rows) / len(rows)
    summary["step_interval_coverage"] = sum(row["inside"] for row in rows) / len(rows)
    widths = [(row["interval"][1] - row["interval"][0]) / row["predicted_seconds"] for row in rows]
    summary["step_interval_width_mean"] = statistics.fmean(widths)
    result = {
        "benchmark": "plan_steps",
        "summary": summary,
        "rows": rows,
        "table": {"header": header, "rows": shown},
        "environment": environment(),
    }
    finish(result, arguments)


if __name__ == "__main__":
    main()
