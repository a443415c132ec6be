"""One study of trivial trials on a Ray cluster of this machine, by Trainwright or by Ray Tune, in its own environment.

    python -m benchmarks.ray.child ours 1000 1 2      # trials, reports of each, devices

Ends with a line of JSON: the seconds of `study.run` or of `Tuner.fit`, the trials and reports that came of it. The
cluster is started before; the actors are started within.
"""

import json
import logging
import sys
import tempfile
import time
from typing import Any

__all__ = ["main", "ours", "train", "tune"]


def train(trial: Any) -> None:
    """Report as often as told."""
    for _ in range(trial.params["reports"]):
        trial.report(loss=trial.params["x"])


def ours(folder: str, trials: int, reports: int, devices: int) -> tuple[float, int, int]:
    """Run random search with a ledger in a directory."""
    import trainwright as tw

    engine = tw.Ray(workers=devices)
    assert engine.slots == devices
    space = tw.Space(x=tw.Float(0, 1), reports=tw.Constant(reports))
    study = tw.Study(space, "min loss", directory=f"{folder}/study", seed=0)
    began = time.perf_counter()
    study.run(train, trials=trials, searcher=tw.RandomSearcher(), engine=engine, progress=False)
    seconds = time.perf_counter() - began
    return seconds, study.state.results, sum(len(trial.reports) for trial in study.trials)


def tune(folder: str, trials: int, reports: int, devices: int) -> tuple[float, int, int]:
    """Run random search as Ray Tune does it fastest: actors are reused, no logger writes files for each trial."""
    from ray import tune as ray_tune

    def function(config: dict[str, Any]) -> None:
        for _ in range(reports):
            ray_tune.report({"loss": config["x"]})

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
    told = [(results[n].metrics or {}).get("training_iteration", 0) for n in range(len(results))]
    return seconds, sum(map(bool, told)), sum(told)


def main(system: str, trials: int, reports: int, devices: int) -> None:
    """Run one study."""
    import ray

    ray.init(
        address="local", num_cpus=devices, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    with tempfile.TemporaryDirectory() as folder:
        run = ours if system == "ours" else tune
        seconds, ended, told = run(folder, trials, reports, devices)
    ray.shutdown()
    print(json.dumps({"seconds": seconds, "trials": ended, "reports": told}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
