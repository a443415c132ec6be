"""One study of trivial trials on a Ray cluster of this machine, by Trainwright or by Ray Tune, in its own environment.

    python -m benchmarks.ray.child ours 1000 1 2      # trials, reports of each, devices

Ends with a line of JSON: the seconds of `study.run` or of `Tuner.fit`, the trials and reports that came of it, and the
mean seconds from a trial's first report to its last. The cluster is started before; the actors are started within.
"""

import json
import logging
import statistics
import sys
import tempfile
import time
from typing import Any

__all__ = ["main", "ours", "train", "tune"]


def train(trial: Any) -> None:
    """Report as often as told."""
    began = time.perf_counter()
    for _ in range(trial.params["reports"]):
        trial.report(loss=trial.params["x"], seconds=time.perf_counter() - began)


def ours(folder: str, trials: int, reports: int, devices: int) -> tuple[float, list[int], list[float]]:
    """Run random search with a ledger in a directory."""
    import trainwright as tw

    engine = tw.Ray(workers=devices)
    assert engine.slots == devices
    space = tw.Space(x=tw.Float(0, 1), reports=tw.Constant(reports))
    study = tw.Study(space, "min loss", directory=f"{folder}/study", seed=0)
    began = time.perf_counter()
    study.run(train, trials=trials, searcher=tw.RandomSearcher(), engine=engine, progress=False)
    seconds = time.perf_counter() - began
    ended = [trial for trial in study.trials if trial.values]
    return seconds, [len(trial.reports) for trial in ended], [trial.values["seconds"] for trial in ended]


def tune(folder: str, trials: int, reports: int, devices: int) -> tuple[float, list[int], list[float]]:
    """Run random search as Ray Tune does it fastest: actors are reused, no logger writes files for each trial."""
    from ray import tune as ray_tune

    def function(config: dict[str, Any]) -> None:
        began = time.perf_counter()
        for _ in range(reports):
            ray_tune.report({"loss": config["x"], "seconds": time.perf_counter() - began})

    tuner = ray_tune.Tuner(
        ray_tune.with_resources(function, {"cpu": 1}),
        param_space={"x": ray_tune.uniform(0, 1)},
        tune_config=ray_tune.TuneConfig(
            num_samples=trials, metric="loss", mode="min", reuse_actors=True, max_concurrent_trials=devices
        ),
        run_config=ray_tune.RunConfig(storage_path=folder, verbose=0),
    )
    began = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - began
    ended = [found for n in range(len(results)) if (found := results[n].metrics)]
    return seconds, [found["training_iteration"] for found in ended], [found["seconds"] for found in ended]


def main(system: str, trials: int, reports: int, devices: int) -> None:
    """Run one study."""
    import ray

    ray.init(
        address="local", num_cpus=devices, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    with tempfile.TemporaryDirectory() as folder:
        run = ours if system == "ours" else tune
        seconds, told, spans = run(folder, trials, reports, devices)
    ray.shutdown()
    found = {"seconds": seconds, "trials": len(told), "reports": sum(told), "span": statistics.mean(spans)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
