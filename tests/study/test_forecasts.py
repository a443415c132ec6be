"""Forecasts: many simulated studies, side by side; of a study's own curves too."""

import math

import pytest

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.errors import InputError
from trainwright.ledger import facts
from trainwright.study.forecast.forecast import Spread

SPACE = tw.Space(rate=tw.Float(1e-3, 1.0, log=True))
ENGINE = tw.Simulated(cluster=tw.Cluster(4, 4), task=tw.Parametric(epoch_seconds=10.0))


@pytest.fixture
def study():
    return tw.Study(SPACE, "min val_loss", seed=3)


def test_spread():
    """Nine of ten values lie in it."""
    spread = Spread.of([float(value) for value in range(100)])
    assert (spread.mean, spread.low, spread.high) == (49.5, 4.0, 94.0)
    assert Spread.of([1.0, math.inf]).mean == math.inf


def test_a_forecast_is_of_the_runs_of_its_seeds(study):
    """The studies are those of seeds from the study's own on, and the numbers are theirs."""
    forecast = study.simulate(tw.ASHA(max_epochs=9), engine=ENGINE, trials=20, seeds=4)
    scheduler = tw.Scheduler(tw.ASHA(max_epochs=9))
    runs = [simulate(scheduler, ENGINE, trials=20, seed=3 + number) for number in range(4)]
    assert [run.digest for run in forecast.runs] == [run.digest for run in runs]
    assert forecast.makespan_seconds.mean == pytest.approx(sum(run.makespan_seconds for run in runs) / 4)
    assert forecast.gpu_hours.high == max(run.device_seconds for run in runs) / 3600
    assert forecast.runs[0].gantt
    assert forecast.stalls == forecast.substitutions == 0


def test_searchers_hear_of_results(study):
    """Searched trials come to be better than drawn ones, as what they came to is told."""
    rates = [10 ** (-3 + 0.03 * row) for row in range(100)]
    table = tw.tables(
        {"valid_loss": [[abs(math.log10(rate) + 2)] for rate in rates], "hp": [[rate] for rate in rates],
         "hp_names": ["rate"]},
        missing="nearest",
    )  # fmt: skip
    engine = tw.Simulated(cluster=tw.Cluster(1, 1), task=table, drops_per_second=0.001)
    rule = tw.FixedEpochs(1)
    found = {
        type(searcher).__name__: study.simulate(rule, engine=engine, trials=40, seeds=2, searcher=searcher)
        for searcher in (tw.RandomSearcher(), tw.EvolutionSearcher())
    }
    assert found["EvolutionSearcher"].best_loss.mean <= found["RandomSearcher"].best_loss.mean
    assert found["EvolutionSearcher"].failed.mean > 0


def test_a_space_of_few_configurations_ends_in_promotions(study):
    """As in a real study: what has been tried is not tried again, and the rule goes on with what there is."""
    rows = {"valid_loss": [[5.0 - row] * 9 for row in range(5)], "hp": [[row] for row in range(5)], "hp_names": ["row"]}
    few = tw.Study(tw.Space(row=tw.Int(0, 4)), "min loss")
    engine = tw.Simulated(cluster=tw.Cluster(1, 2), task=tw.tables(rows))
    found = few.simulate(tw.ASHA(max_epochs=9), engine=engine, trials=40, seeds=2, searcher=tw.RandomSearcher())
    assert found.best_loss.mean == 1.0
    assert found.full.mean <= 5


def test_best_static_is_the_best_of_its_sizes(study):
    """It is resolved to the fixed size with the least mean makespan, all on the same footing."""
    rule = tw.ASHA(max_epochs=9)
    sizes = {str(size): tw.Scheduler(rule, tw.Fixed(size)) for size in (1, 2, 4)}
    best = tw.Scheduler(rule, tw.BestStatic(sizes=(1, 2, 4, 64)))
    found = study.simulate({**sizes, "best": best}, engine=ENGINE, trials=16, seeds=3)
    name = min(sizes, key=lambda size: found[size].makespan_seconds.mean)
    assert found["best"] == found[name]
    assert found["best"].scheduler.policy == tw.Fixed(int(name))
    with pytest.raises(InputError, match="by simulation; give it to study"):
        study.run(print, trials=1, scheduler=best, engine=tw.Local(workers=0), progress=False)


def test_measured(study):
    """A study's own curves, seconds and restarts make the engine; stopped trials go on as the full ones did."""
    study.run(train, trials=12, scheduler=tw.ASHA(max_epochs=4, eta=2), engine=tw.Local(workers=0), progress=False)
    engine = study.measured(tw.Cluster(2, 2))
    table = engine.task
    assert len(table.losses) == 12
    assert all(len(curve) == 4 for curve in table.losses)
    for trial, curve, known, seconds in zip(study.trials, table.losses, table.measured, table.seconds, strict=True):
        reported = [trial.reports[epoch].metrics["val_loss"] for epoch in sorted(trial.reports)]
        assert curve[:known, 0].tolist() == reported
        assert (seconds[1:] > seconds[:-1]).all()
    assert all(curve[3, 0] == pytest.approx(curve[0, 0] - 0.75) for curve in table.losses)
    forecast = study.simulate(tw.ASHA(max_epochs=4, eta=2), engine=engine, trials=12, seeds=2)
    assert forecast.full.mean > 0
    empty = tw.Study(SPACE, "min val_loss")
    with pytest.raises(InputError, match="no trial of this study has reported yet"):
        empty.measured(tw.Cluster())


def test_what_a_resize_costs_is_measured(study):
    """Two runs of each trial: its seconds are those on its first devices, the second run tells what changing them took.

    Here the first epoch begins after 10 s, and takes 10 s; on two devices, where it takes 6 s, it begins after 5 s.
    """
    times = [(1, 1, 120.0, 11.0, 1.0), (1, 2, 130.0, 21.0, 0.0), (2, 3, 141.0, 9.0, 3.0), (2, 4, 147.0, 15.0, 0.0)]
    for trial in (0, 1):
        records = [facts.started(trial, 1, slot=f"{trial}", devices=["0"], resumed_epoch=0)._replace(at=100.0)]
        for lease, epoch, at, ran, setup in times:
            if epoch == 3:
                pause = facts.paused(trial, 1, reason="resized", epoch=2, values={}, wall_seconds=21.0)
                start = facts.started(trial, 2, slot=f"{trial}+", devices=["0", "1"], resumed_epoch=2)
                records += [pause._replace(at=130.0), start._replace(at=130.0)]
            said = {"step": None, "metrics": {"val_loss": 1.0 / epoch}, "wall_seconds": ran, "setup_seconds": setup}
            records.append(facts.reported(trial, lease, epoch=epoch, **said)._replace(at=at))
        for number, record in enumerate(records):
            study.state.apply(record._replace(writer=f"w{trial}", seq=number))
    engine = study.measured(tw.Cluster(1, 2))
    assert [seconds.tolist() for seconds in engine.task.seconds] == [[10.0, 20.0, 30.0, 40.0]] * 2
    assert (engine.process_seconds, engine.restart_seconds, engine.resize_seconds) == (10.0, 0.0, 5.0)


def train(trial):
    for epoch in trial.epochs():
        trial.report(val_loss=trial.params["rate"] + 1 / epoch)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"trials": 0}, "simulate.trials: got 0"),
        ({"trials": 4, "seeds": 0}, "simulate: seeds: got 0"),
        ({"trials": 4, "engine": tw.Local(workers=0)}, r"simulate: engine: got .*allowed: tw.Simulated"),
        ({"trials": 4, "scheduler": {}}, "got no scheduler"),
        ({"trials": 4, "scheduler": tw.Scheduler(tw.FixedEpochs(2), tw.BestStatic(sizes=(64,)))}, "give smaller ones"),
        ({"trials": 4, "scheduler": tw.Scheduler(tw.FixedEpochs(2), tw.Fixed(17))}, "got 17, the engine has 16 slots"),
    ],
)
def test_refusals(study, arguments, sentence):
    """Each in one sentence."""
    with pytest.raises(InputError, match=sentence):
        study.simulate(**{"scheduler": tw.ASHA(max_epochs=3), "engine": ENGINE, **arguments})
