"""Policies that resize on real trainings beside their simulation: two devices, which are the cores of this machine.

Trials are perceptrons of two to four hidden layers that learn generated data; ranks exchange gradients. ASHA stops them
after an epoch or trains them for eight. "at once": two trials, "queue": eight. The simulator is told what a trial's
epochs take and come to, from a run of all trials to their end on a device each; how fast a trial is on two devices,
from the first two trials there; and what moves cost, how long steps of other batches take and how noisy gradients are,
from another study by goodput. Nothing is fitted to the runs that are compared. Times are means over the seeds.
`in_order`: of the pairs of policies that are more than a twentieth apart in the simulation, how many are in the same
order for real.

    python benchmarks/schedule/trained.py --json [--seeds 3] [--keep FILE]
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, finish_table, progress
from benchmarks.schedule.paired import Kept

import trainwright as tw
from trainwright.engine.simulated.settings import GoodputScaling, Scaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import Table
from trainwright.schedule.allocator.estimates import Goodput

__all__ = ["main", "train"]

EPOCHS, BATCH, LARGEST, SAMPLES, WIDTH = 8, 512, 4096, 8192, 512
APART = 1.05
RULE = tw.ASHA(max_epochs=EPOCHS, min_epochs=1, eta=EPOCHS, cutoff="quantile")
# By name: the policy, and whether trials choose their batch.
CONTENDERS: dict[str, tuple[Any, bool]] = {
    "ASHA": (tw.Fixed(1), False),
    "RASDA as published": (tw.DoublingAsPublished(), False),
    "RASDA": (tw.Doubling(), False),
    "MarginalGain": (tw.MarginalGain(), False),
    "goodput": (tw.MarginalGain(), True),
}
REGIMES = {"at once": 2, "queue": 8}
HEADER = ("trials", "policy", "measured, s", "simulated, s", "error", "measured / ASHA", "simulated / ASHA")
SPACE = {"rate": tw.Float(0.01, 0.5, log=True), "layers": tw.Int(2, 4)}


def train(trial: tw.Trial) -> None:
    """Learn what a random network says of random data; log the steps of each epoch."""
    import time

    import torch
    from torch import nn

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES + 1024, 256, generator=generator)
    y = (torch.tanh(x @ torch.randn(256, 64, generator=generator)) @ torch.randn(64, 10, generator=generator)).argmax(1)
    widths = [256, *[WIDTH] * trial.params["layers"]]
    layers = [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["rate"])
    data = torch.utils.data.TensorDataset(x[:SAMPLES], y[:SAMPLES])
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)
    loss = nn.functional.cross_entropy
    rule: Any = "goodput" if trial.params["chooses"] else "constant"
    run = trial.prepare(model, optimizer, loader, loss=lambda model, batch: loss(model(batch[0]), batch[1]), batch=rule)
    for epoch in trial.epochs():
        began, steps = time.monotonic(), 0
        for batch in run.loader:
            run.step(batch)
            steps += 1
        if trial.rank == 0:
            seconds = (time.monotonic() - began) / steps
            said = [trial.number, epoch, trial.devices, run.batch, seconds, run.noise_scale]
            with (trial.folder.parents[1] / "steps").open("a") as log:
                log.write(json.dumps(said) + "\n")
        with torch.no_grad():
            trial.report(loss=float(loss(run.model(x[SAMPLES:]), y[SAMPLES:])))


def run_study(folder: Path, scheduler: tw.Scheduler, trials: int, seed: int, *, chooses: bool = False) -> tw.Study:
    """Run a study on two workers and return it."""
    space = tw.Space(**SPACE, chooses=tw.Constant(chooses))
    study = tw.Study(space, "min loss", directory=folder, seed=seed, searcher=tw.RandomSearcher())
    study.run(train, trials=trials, scheduler=scheduler, engine=tw.Local(workers=2, gpus=()), progress=False)
    return study


def makespan(study: tw.Study) -> float:
    """Return the seconds from the first start to the last end."""
    leases = [lease for trial in study.trials for lease in trial.leases.values()]
    return max(each.ended_at or 0.0 for each in leases) - min(each.started_at or 0.0 for each in leases)


def epoch_seconds(study: tw.Study) -> dict[int, float]:
    """Return the median seconds of an epoch by trial; the first one waits for the process."""
    found = {}
    for trial in study.trials:
        walls = [trial.reports[epoch].wall_seconds for epoch in sorted(trial.reports)]
        found[trial.number] = float(np.median(np.diff(walls)))
    return found


def learn(folder: Path, seed: int) -> tuple[tw.Simulated, GoodputScaling, Table]:
    """Return what the simulator is told: costs and speeds, and the curves of this seed's trials."""
    most = max(REGIMES.values())
    whole = run_study(folder / "whole", tw.Scheduler(tw.FixedEpochs(EPOCHS), tw.Fixed(1)), most, seed)
    alone = epoch_seconds(whole)
    pair = run_study(folder / "pair", tw.Scheduler(tw.FixedEpochs(4), tw.Fixed(2)), 2, seed)
    speed = float(np.median([alone[number] / seconds for number, seconds in epoch_seconds(pair).items()]))
    other = run_study(folder / "other", tw.Scheduler(RULE, tw.MarginalGain()), 4, seed + 1000, chooses=True)
    known = replace(other.measured(tw.Cluster(1, 2)), task_devices=1, scaling=Scaling(curve={1: 1.0, 2: speed}))
    model, units = Goodput(reference=BATCH, micro_batch=BATCH, largest=LARGEST), dict[int, float]()
    noises = defaultdict[int, list[float]](list)
    for line in (folder / "other" / "steps").read_text().splitlines():
        trial, epoch, devices, batch, seconds, noise = json.loads(line)
        units[trial] = model.observe(model.shape(devices, batch), seconds, units.get(trial))
        if noise is not None:
            noises[epoch].append(noise)
    at = sorted(noises)
    goodput = GoodputScaling(
        step_seconds=lambda devices, batch: model.expect(model.shape(devices, batch)),
        noise=lambda epoch: float(np.interp(epoch, at, [np.median(noises[each]) for each in at])),
        reference=BATCH,
        largest=LARGEST,
        micro_batch=BATCH,
    )
    table = Table(
        losses=tuple(np.array([[t.reports[e].metrics["loss"]] for e in range(1, EPOCHS + 1)]) for t in whole.trials),
        seconds=tuple(np.arange(1, EPOCHS + 1) * alone[trial.number] for trial in whole.trials),
        in_order=True,
    )
    costs = {name: round(getattr(known, f"{name}_seconds"), 2) for name in ("process", "start", "restart", "resize")}
    progress(f"seed {seed}: {speed:.2f} times as fast on two devices; costs in seconds {costs}")
    return known, goodput, table


def play(seed: int, kept: Kept) -> list[list[float]]:
    """Return the makespan of each policy in each regime, measured and simulated, and the speed on two devices."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learned = cache(partial(learn, folder, seed))

        def compare(regime: str, contender: str) -> list[float]:
            known, goodput, table = learned()
            policy, chooses = CONTENDERS[contender]
            scheduler, trials = tw.Scheduler(RULE, policy), REGIMES[regime]
            setting = replace(known, task=table, scaling=goodput if chooses else known.scaling)
            simulated = simulate(scheduler, setting, trials=trials, seed=seed).makespan_seconds
            study = run_study(folder / regime / contender, scheduler, trials, seed, chooses=chooses)
            progress(f"{seed} {regime} {contender}: {makespan(study):.1f} s, simulated {simulated:.1f} s")
            assert isinstance(known.scaling, Scaling)
            return [makespan(study), simulated, known.scaling.speedup(2)]

        return [
            kept.of(f"{seed} {regime} {contender}", partial(compare, regime, contender))
            for regime in REGIMES
            for contender in CONTENDERS
        ]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run all policies with each seed, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="file of finished studies, which are not run again")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    kept = Kept(arguments.keep)
    runs = np.array([play(seed, kept) for seed in range(arguments.seeds)]).mean(axis=0)
    times = runs[:, :2].reshape(len(REGIMES), len(CONTENDERS), 2)
    numbers: dict[str, float] = {"speed_of_two_devices": float(runs[:, 2].mean())}
    rows = []
    for regime, of_regime in zip(REGIMES, times, strict=True):
        for name, (measured, simulated) in zip(CONTENDERS, of_regime, strict=True):
            ratios = (measured, simulated) / of_regime[0]
            error = simulated / measured - 1
            key = f"{regime}_{name}".lower().replace(" ", "_")
            numbers |= {f"{key}_measured_seconds": measured, f"{key}_simulated_seconds": simulated}
            numbers |= {f"{key}_error": error, f"{key}_ratio": ratios[0], f"{key}_simulated_ratio": ratios[1]}
            rows.append(
                [
                    regime,
                    name,
                    f"{measured:.1f}",
                    f"{simulated:.1f}",
                    f"{100 * error:+.1f} %",
                    *(f"{r:.2f}" for r in ratios),
                ]
            )
        pairs = [(a, b) for a, b in permutations(of_regime, 2) if a[1] > APART * b[1]]
        place = regime.replace(" ", "_")
        numbers |= {f"{place}_pairs": len(pairs), f"{place}_in_order": sum(bool(a[0] > b[0]) for a, b in pairs)}
    return finish_table("schedule_trained", arguments, HEADER, rows, numbers, seeds=arguments.seeds)


if __name__ == "__main__":
    main()
