"""The simulator decides as a study did: a real run's ledger, replayed with its recorded times."""

import time

import numpy as np
import pytest

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import Table

SPACE = tw.Space(rate=tw.Float(1e-3, 1.0, log=True), pace=tw.Float(0.5, 2.0))
WORKERS = 2


def train(trial):
    for epoch in trial.epochs():
        time.sleep(0.02 * trial.params["pace"])
        trial.report(val_loss=trial.params["rate"] + trial.params["pace"] / epoch)


@pytest.mark.parametrize(
    "rule",
    [
        tw.ASHA(max_epochs=8, eta=2),
        pytest.param(tw.Median(min_epochs=2, max_epochs=6, min_trials=3), marks=pytest.mark.slow),
        pytest.param(tw.ASHA(max_epochs=9, cutoff="quantile"), marks=pytest.mark.slow),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_ledger_replayed_gives_the_same_decisions(tmp_path, rule):
    """With the curves and the times of the reports that were recorded, the same verdicts fall in the same order."""
    study = tw.Study(SPACE, "min val_loss", directory=tmp_path / "study", seed=1)
    study.run(
        train,
        trials=14,
        scheduler=rule,
        engine=tw.Local(workers=WORKERS),
        searcher=tw.RandomSearcher(),
        progress=False,
    )
    records = list(study._log.replay({"reported", "decided"}))
    stops = {(record.trial, record.body["epoch"]) for record in records if record.body.get("verdict") == "stop"}
    reports = [record for record in records if record.kind == "reported"]
    told = [
        (record.trial, epoch, (record.trial, epoch) in stops or epoch == rule.max_epochs)
        for record in reports
        if (epoch := record.body["epoch"])
    ]
    assert stops
    simulated = replayed(rule, reports)
    heard = {(trial, epoch) for trial, epoch, _ in simulated}
    assert simulated == [each for each in told if each[:2] in heard]
    assert {trial: epoch for trial, epoch, ends in simulated if ends} == {
        trial: epoch for trial, epoch, ends in told if ends
    }


def replayed(rule, reports):
    """Simulate trials with these curves and times; return trial, epoch, and whether it ended, in their order.

    A trial's first epoch begins when its slot became free, as in a simulation it starts at once.
    """
    times, curves, order = {}, {}, []
    for record in reports:
        times.setdefault(record.trial, []).append(record.at)
        curves.setdefault(record.trial, []).append([record.body["metrics"]["val_loss"]])
    began = min(min(each) for each in times.values()) - 1.0
    free = [began] * WORKERS + sorted(each[-1] for each in times.values())
    numbers = sorted(times)
    table = Table(
        losses=tuple(np.array(curves[number]) for number in numbers),
        seconds=tuple(np.array(times[number]) - free[number] for number in numbers),
        in_order=True,
    )
    simulate(
        tw.Scheduler(rule),
        tw.Simulated(cluster=tw.Cluster(1, WORKERS), task=table),
        trials=len(numbers),
        seed=1,
        on_result=lambda trial, epoch, losses, rests: order.append((trial, epoch, rests)),
    )
    return order
