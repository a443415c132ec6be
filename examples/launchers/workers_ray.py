"""Workers as Ray tasks: Ray places them, and restarts those that die; the study's ledger does the rest."""

from pathlib import Path

import ray

import trainwright as tw
from workers import SPACE

DIRECTORY = Path("runs/ray").resolve()  # on a cluster: one that all its nodes see


def work(trials: int) -> int:
    # Ray gave the task its own process, threads and GPUs: trials run right here, with workers=0.
    worker = tw.Worker(where=DIRECTORY, train="workers:train", engine=tw.Local(workers=0))
    return worker.run(trials=trials, progress=False)


if __name__ == "__main__":
    tw.Study(SPACE, objectives="min loss", directory=DIRECTORY, seed=0).close()
    ray.init()
    task = ray.remote(work)  # ray.remote(num_gpus=1)(work) with GPUs
    ours = ray.get([task.remote(12) for _ in range(2)])
    print(f"{sum(ours)} results by {len(ours)} tasks")
