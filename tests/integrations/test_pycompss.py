"""The PyCOMPSs engine, on a stand-in for PyCOMPSs: with its native runtime it has not been run."""

import importlib
import os
import sys
import time
from pathlib import Path

import pytest
from fake_compss import TASK, install

import trainwright as tw
from trainwright.errors import EngineError, MissingExtra
from trainwright.integrations.pycompss import PyCOMPSs
from trainwright.testing.engine import EngineConformance

SPACE = tw.Space(x=tw.Float(0, 1))


@pytest.fixture
def runtime(monkeypatch):
    yield install(monkeypatch, deferred=True)
    sys.modules.pop(TASK, None)


class TestTasks(EngineConformance):
    @pytest.fixture(autouse=True)
    def _deferred(self, monkeypatch):
        install(monkeypatch, deferred=True)
        yield
        sys.modules.pop(TASK, None)

    def make_engine(self):
        return PyCOMPSs(slots=3)


def train(trial):
    """Count the epochs done in a file, as a checkpoint would."""
    kept = Path(trial.assignment.directory) / f"epoch-{trial.number}"
    done = int(kept.read_text()) if kept.exists() else 0
    for epoch in range(done + 1, 10):
        kept.write_text(str(epoch))
        trial.report(epoch=epoch, loss=trial.params["x"] + 1 / epoch)


def test_reports_are_judged_as_they_come(runtime, tmp_path):
    """A trial is stopped at any report, whatever the rule, and decided as by one local process."""
    found = []
    for name, make in (("local", lambda: tw.Local(workers=0)), ("compss", tw.PyCOMPSs)):
        study = tw.Study(SPACE, objectives="min loss", directory=tmp_path / name, seed=0, searcher=tw.RandomSearcher())
        rule = tw.AnyOf(tw.ASHA(max_epochs=9, eta=3), tw.Median())
        study.run(train, trials=12, scheduler=rule, engine=make(), progress=False)
        found.append([(trial.number, trial.params["x"], trial.epoch, trial.status) for trial in study.trials])
    assert found[0] == found[1]
    assert runtime.tasks == 1


def test_without_the_runtime_a_sentence(monkeypatch, tmp_path):
    """In plain python tasks are calls: a study would wait for its own thread."""
    install(monkeypatch, deferred=False)
    study = tw.Study(SPACE, objectives="min loss", directory=tmp_path, seed=0)
    with pytest.raises(EngineError, match=r"start the program with runcompss, or run it on tw\.Local\(workers=3\)"):
        study.run(train, trials=1, scheduler=tw.FixedEpochs(1), engine=tw.PyCOMPSs(slots=3), progress=False)
    sys.modules.pop(TASK, None)


def long_and_short(trial):
    """Trial 0 ends when the others have: 30 seconds are enough for them, if anybody starts them."""
    ends = Path(trial.assignment.directory) / "ends"
    ends.mkdir(exist_ok=True)
    deadline = time.monotonic() + 30
    while trial.number == 0 and len(list(ends.iterdir())) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    (ends / f"{trial.number}-of-{len(list(ends.iterdir()))}").touch()
    trial.report(epoch=1, loss=trial.params["x"])


def test_slots_do_not_idle_behind_a_long_trial(monkeypatch, tmp_path):
    """Eight short trials pass through the second slot while the first trial takes its time."""
    install(monkeypatch, deferred=True)
    try:
        rule = tw.FixedEpochs(1)
        study = tw.Study(SPACE, objectives="min loss", directory=tmp_path, seed=0, searcher=tw.RandomSearcher())
        study.run(long_and_short, trials=9, scheduler=rule, engine=tw.PyCOMPSs(slots=2), progress=False)
    finally:
        sys.modules.pop(TASK, None)
    assert (tmp_path / "ends" / "0-of-8").exists()


def together(trial):
    import torch

    total = torch.tensor([trial.rank + 1.0])
    torch.distributed.all_reduce(total)
    trial.report(epoch=1, loss=total)


def test_a_trial_of_several_slots(monkeypatch, tmp_path):
    """Its ranks, each a process of another task, find each other."""
    pytest.importorskip("torch")
    install(monkeypatch, deferred=True)
    try:
        study = tw.Study(SPACE, objectives="min loss", directory=tmp_path, seed=0)
        study.run(together, trials=1, scheduler=tw.Fixed(2), engine=tw.PyCOMPSs(slots=2), progress=False)
    finally:
        sys.modules.pop(TASK, None)
    assert study.best.values == {"loss": 3.0}


def test_a_slot_is_a_constraint(runtime):
    """The size of a slot reaches PyCOMPSs as variables that its constraints name."""
    engine = PyCOMPSs(slots=2, cpus=4, gpus=1)
    engine.open(train, None)
    engine.close()
    assert (os.environ["TRAINWRIGHT_CPUS"], os.environ["TRAINWRIGHT_GPUS"]) == ("4", "1")
    __import__(TASK)
    named = [unit["computingUnits"] for unit in runtime.constraints["processors"]]
    assert named == ["$TRAINWRIGHT_CPUS", "$TRAINWRIGHT_GPUS"]
    assert engine.devices((1,)) == ("compss:1",)
    assert engine.slots_per_node == 1


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"slots": 0}, "PyCOMPSs.slots: got 0; allowed: a whole number >= 1"),
        ({"gpus": -1}, "PyCOMPSs.gpus: got -1; allowed: a whole number >= 0"),
    ],
)
def test_what_it_cannot_do_is_refused(settings, sentence):
    with pytest.raises(EngineError) as caught:
        PyCOMPSs(**settings)
    assert str(caught.value) == sentence


def test_without_it_a_sentence(monkeypatch):
    """Where PyCOMPSs is not installed, the error says how to get it and what runs the same program."""
    monkeypatch.setattr("trainwright.integrations.pycompss.find_spec", lambda _: None)
    with pytest.raises(MissingExtra) as caught:
        PyCOMPSs(slots=4)
    assert str(caught.value) == (
        "tw.PyCOMPSs needs pycompss, which needs Java and compiles its runtime: pip install pycompss; "
        "or run the same program on tw.Local(workers=4)"
    )


def test_the_example_runs_as_tasks(monkeypatch, tmp_path):
    """The grid of independent tasks of the examples, two of each choice, as tasks of the stand-in."""
    install(monkeypatch, deferred=True)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples/launchers")
    example = importlib.import_module("grid_compss")
    space = tw.Space(
        optimizer=tw.Choice("SGD", "Adam"), epochs=tw.Choice(1, 3, ordered=True), batch_size=tw.Choice(256)
    )
    study = tw.Study(space, objectives="min error", directory=tmp_path, seed=0)
    study.run(example.train, searcher=tw.GridSearcher(), engine=PyCOMPSs(slots=2), progress=False)
    sys.modules.pop(TASK, None)
    assert study.state.counts["complete"] == 4
    assert study.best.values["error"] < 0.5
