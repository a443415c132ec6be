"""What exactness costs: the loader per sample beside torch's own, and slots per step beside DDP.

    python benchmarks/checkpoint/loader.py --json

The data set returns ready tensors, so that all time is the loader's. `seeding_us` is our loader less torch's
DataLoader of the same data set, batch size and shuffling, per sample, in processor time of this process (workers=0):
the least of several rounds, since other work on the machine only ever adds. `order_us` is the permutation alone. A step
with slots is timed on four ranks (gloo) beside DDP's on the same model and batches; `slots8_bytes` is what each rank
receives with eight slots.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, table

__all__ = ["main"]

_SAMPLES, _BATCH, _RANKS = 4096, 256, 4


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    summary = {**_per_sample(arguments.repeats), **_per_step(arguments.repeats)}
    print(table(["", "value"], [[name, f"{value:.4g}"] for name, value in summary.items()]))
    result = {"benchmark": "checkpoint-loader", "environment": environment(), "summary": summary}
    finish(result, arguments)
    return result


def _per_sample(repeats: int) -> dict[str, float]:
    """Return microseconds a sample: of our loader, of torch's, of the difference, and of the order alone."""
    import numpy as np
    import torch

    from trainwright.train import Loader
    from trainwright.train.sampling import Permutation

    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.randn(_SAMPLES, 16), torch.arange(_SAMPLES))
    ours = Loader(data, global_batch=_BATCH, seed=0)
    plain = torch.utils.data.DataLoader(data, batch_size=_BATCH, shuffle=True)
    permutation, places = Permutation(_SAMPLES, 0, 1), np.arange(_SAMPLES).reshape(-1, _BATCH)
    works = {
        "loader_us": lambda: sum(1 for _ in ours),
        "torch_us": lambda: sum(1 for _ in plain),
        "order_us": lambda: [permutation(batch) for batch in places],
    }
    least = {name: _least(work, repeats, time.process_time) * 1e6 / _SAMPLES for name, work in works.items()}
    return {**least, "seeding_us": least["loader_us"] - least["torch_us"]}


def _per_step(repeats: int) -> dict[str, float]:
    """Return milliseconds of a step with DDP and with slots on four ranks, and what they move."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        members = [
            context.Process(target=_member, args=(rank, f"file://{folder}/store", repeats, results))
            for rank in range(_RANKS)
        ]
        for member in members:
            member.start()
        found: dict[str, float] = results.get(timeout=600)
        for member in members:
            member.join()
    return found


def _member(rank: int, store: str, repeats: int, results: Any) -> None:
    import torch

    from trainwright.train import Slots

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=_RANKS)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    batch = torch.randn(64, 512)
    eight, four = (Slots(model, count=count, seed=0) for count in (8, 4))

    def loss_of(module: torch.nn.Module, part: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = module(part).square().mean()
        return loss

    times = {
        "ddp_step_ms": _least(lambda: loss_of(wrapped, batch).backward(), repeats) * 1e3,
        "slots4_step_ms": _least(lambda: four.backward(batch, loss_of), repeats) * 1e3,
        "slots8_step_ms": _least(lambda: eight.backward(batch, loss_of), repeats) * 1e3,
    }
    moved = {
        "gradient_bytes": size,
        "ddp_bytes": 2 * size * (_RANKS - 1) / _RANKS,  # an all-reduce over a ring
        "slots4_bytes": 4 * size * (_RANKS - 1) / _RANKS,
        "slots8_bytes": 8 * size * (_RANKS - 1) / _RANKS,
    }
    if rank == 0:
        results.put({**times, **moved})
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _least(work: Any, repeats: int, clock: Any = time.perf_counter) -> float:
    work()
    spans: list[float] = []
    for _ in range(repeats):
        started = clock()
        work()
        spans.append(clock() - started)
    return min(spans)


if __name__ == "__main__":
    main()
