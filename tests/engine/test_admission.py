"""Trials are judged before they start: those that do not fit fail at once, the others run as ever."""

from dataclasses import dataclass
from itertools import count

import pytest

import trainwright as tw
from trainwright.engine import AdmissionControl, Died, Raised
from trainwright.study import StudyFailed
from trainwright.testing.engine import EngineConformance, OutcomeRecorder
from trainwright.train.assignment import Assignment


@dataclass(frozen=True)
class Said:
    runs: bool
    sentence: str = "does not fit: 2.00 GB are wanted, 1.00 GB are there"


class TestWithAYesMan(EngineConformance):
    """An engine that lets everything in is the engine inside."""

    processes = False

    def make_engine(self):
        return AdmissionControl(tw.Local(workers=0), lambda params, devices: Said(True))


@pytest.mark.slow
class TestWithAYesManAndProcesses(EngineConformance):
    def make_engine(self):
        return AdmissionControl(tw.Local(workers=2), lambda params, devices: Said(True))


def width_below(limit):
    return lambda params, devices: Said(params["width"] <= limit * devices)


def train(trial):
    trial.report(loss=1.0 / trial.params["width"])


SPACE = tw.Space(width=tw.Choice(1, 2, 4, 8))


def test_what_does_not_fit_never_starts():
    ran = []

    def watched(trial):
        ran.append(trial.params["width"])
        train(trial)

    study = tw.Study(SPACE, objectives="min loss")
    engine = AdmissionControl(tw.Local(workers=0), width_below(2))
    study.run(watched, searcher=tw.GridSearcher(), engine=engine, progress=False)
    assert sorted(ran) == [1, 2]
    rejected = [trial for trial in study.trials if trial.failure is not None]
    assert sorted(trial.params["width"] for trial in rejected) == [4, 8]
    assert {(trial.failure.kind, trial.failure.message) for trial in rejected} == {("rejected", Said(False).sentence)}
    assert study.best.params == {"width": 2}


def test_many_that_do_not_fit_are_no_reason_to_give_up_early():
    """Ten failures without a success would be; rejections end a run at its limit of failures alone."""
    space, searcher, asked = tw.Space(width=tw.Int(1, 1000)), tw.RandomSearcher(), count()
    study = tw.Study(space, objectives="min loss")
    engine = AdmissionControl(tw.Local(workers=0), lambda params, devices: Said(next(asked) >= 20))
    study.run(train, trials=1, searcher=searcher, engine=engine, progress=False)
    assert len(study.trials) == 21
    with pytest.raises(StudyFailed, match="30 trials have failed, 0 have a result; the last: does not fit"):
        tw.Study(space, objectives="min loss").run(
            train,
            trials=1,
            searcher=searcher,
            max_failures=30,
            engine=AdmissionControl(tw.Local(workers=0), lambda params, devices: Said(False)),
            progress=False,
        )


def test_one_that_ran_is_not_failed_on_other_devices(tmp_path):
    """It is lost there, so that the study goes back to the devices that it had."""
    engine, handler = AdmissionControl(tw.Local(workers=0), width_below(2)), OutcomeRecorder()
    engine.open(train, tmp_path)
    wide = {
        "trial": 0,
        "params": {"width": 4},
        "seed": 0,
        "max_epochs": 1,
        "metrics": ("loss",),
        "directory": str(tmp_path),
    }
    engine.launch(Assignment(lease=1, **wide), (0, 1))
    engine.poll(handler, 1.0)
    assert not isinstance(handler.outcomes.pop(0), Raised | Died)
    engine.launch(Assignment(lease=2, **wide), (0,))
    engine.poll(handler, 1.0)
    assert handler.outcomes[0] == Died(why=Said(False).sentence)
    engine.close()
