"""How often a failure is repeated before the run ends, and whether its place is named; kind, epoch and engine vary."""

import importlib
import subprocess
import sys
from itertools import product

import failing_training
import pytest

import trainwright as tw
from trainwright.study import StudyFailed

HERE = ["TypeError", "ModuleNotFoundError", "SystemExit", "library", "setting", "missing"]
PLACED = [*HERE[:5], "memory"]


def fail(tmp_path, kind, epoch, workers, **budget):
    folder = tmp_path / "begun"
    folder.mkdir()
    space = tw.Space(
        kind=tw.Constant(kind), folder=tw.Constant(str(folder)), epoch=tw.Constant(epoch), x=tw.Float(0, 1)
    )
    study = tw.Study(space, "min loss", directory=tmp_path / "study", searcher=tw.RandomSearcher())
    rule, engine = tw.FixedEpochs(4), tw.Local(workers=workers)
    with study, pytest.raises(StudyFailed) as caught:
        study.run(failing_training.fails, scheduler=rule, engine=engine, progress=False, **{"trials": 20} | budget)
    return study, str(caught.value), failing_training.begun(folder)


def check(study, sentence, kind):
    failed = [trial for trial in study.trials if trial.status == "failed"]
    assert len(failed) == 2
    assert sentence.startswith("2 trials have failed in the same way, none has a result: ")
    if kind in PLACED:
        assert f"failing_training.py:{failing_training.LINES[kind]}, in `" in sentence
        # Of two workers, the trial with the lower number may be the one that fails last.
        (last,) = (each for each in failed if f"status {study.directory} --trial {each.number}" in sentence)
        text = last.failure.traceback
        assert "failing_training.py" in text
        assert "trainwright" not in text.split("failing_training.py")[0].replace(str(study.directory), "")


@pytest.mark.parametrize(("kind", "epoch"), list(product(HERE, [1, 3])))
def test_two_equal_failures_end_a_run_in_this_process(tmp_path, kind, epoch):
    study, sentence, begun = fail(tmp_path, kind, epoch, 0)
    assert begun == 2
    check(study, sentence, kind)


@pytest.mark.parametrize(
    ("kind", "epoch"), [("TypeError", 3), ("ModuleNotFoundError", 1), ("exit", 1), ("crash", 3), ("missing", 3)]
)
def test_two_equal_failures_end_a_run_of_two_workers(tmp_path, kind, epoch):
    study, sentence, begun = fail(tmp_path, kind, epoch, 2)
    assert begun <= 3, "one may have begun before the second failed"
    check(study, sentence, kind)
    if kind == "crash":  # what Python knows of it lies in the output that the sentence names
        line = f'failing_training.py", line {failing_training.LINES[kind]} in _crash'
        assert any(line in log.read_text() for log in study.directory.glob("logs/*/*.log"))
        assert "its output: " in sentence


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "epoch"), list(product([*HERE, "exit", "crash"], [1, 3])))
def test_two_equal_failures_end_a_run_of_two_workers_whatever_they_are(tmp_path, kind, epoch):
    study, sentence, begun = fail(tmp_path, kind, epoch, 2)
    assert begun <= 3
    check(study, sentence, kind)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_too_little_memory_may_be_the_configurations_doing(tmp_path, workers):
    """Another batch size may fit, so ten have to fail; the place is named all the same."""
    _, sentence, begun = fail(tmp_path, "memory", 1, workers)
    assert 10 <= begun <= 11
    assert f"failing_training.py:{failing_training.LINES['memory']}, in `raise MemoryError`" in sentence


def test_a_limit_of_failures_that_was_given_is_kept(tmp_path):
    _, sentence, begun = fail(tmp_path, "TypeError", 1, 0, max_failures=5)
    assert begun == 5
    assert sentence.startswith("5 trials have failed, 0 have a result; the last: TypeError")


def run(train, trials=15, **settings):
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", searcher=tw.RandomSearcher())
    study.run(train, trials=trials, scheduler=tw.FixedEpochs(3), engine=tw.Local(workers=0), progress=False, **settings)
    return study


def test_a_study_of_which_few_fail_alike_runs_to_its_end():
    def train(trial):
        for epoch in trial.epochs():
            if trial.number in {1, 4, 11}:
                raise ValueError(trial.number)
            trial.report(loss=trial.params["x"] / epoch)

    study = run(train)
    assert study.state.results == 15
    assert study.state.counts["failed"] == 3


def test_failures_of_different_lines_or_types_are_not_alike():
    def train(trial):
        if trial.number == 0:
            raise ValueError
        if trial.number < 3:
            raise (KeyError if trial.number == 1 else TypeError)
        return 1.0

    assert run(train).state.counts["failed"] == 3


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_a_package_of_another_environment_is_not_the_users_own_line(tmp_path, monkeypatch, packages):
    """As where a site's module brings torch: the line in `train` is named, not that of the package."""
    folder = tmp_path / packages
    folder.mkdir()
    (folder / f"brought_by_{packages[:4]}.py").write_text("def multiply(x):\n    raise RuntimeError('shapes differ')\n")
    monkeypatch.syspath_prepend(folder)
    multiply = importlib.import_module(f"brought_by_{packages[:4]}").multiply

    def train(trial):
        return multiply(trial.params["x"])

    with pytest.raises(StudyFailed, match=r"shapes differ at .*test_failed_trials\.py:\d+, in `return multiply"):
        run(train)


def test_what_failed_in_an_earlier_run_does_not_count():
    broken = [True]

    def train(trial):
        if broken[0] or trial.number == 2:
            raise ValueError
        return 1.0

    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", searcher=tw.RandomSearcher())
    settings = {"engine": tw.Local(workers=0), "progress": False}
    with pytest.raises(StudyFailed, match="2 trials have failed in the same way"):
        study.run(train, trials=3, **settings)
    broken[0] = False
    study.run(train, trials=3, **settings)
    assert study.state.counts["failed"] == 3


def test_a_trial_that_is_killed_again_and_again_ends_the_run(tmp_path):
    """Four times it is started, by whatever it was killed; two such trials are enough."""
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "2 trials have failed in the same way, none has a result: trial 1 was lost 4 times" in done.stderr
    assert len((tmp_path / "begun").read_text()) == 8


def test_a_script_prints_the_place(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(MINE)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert [line.split(" (0")[0] for line in lines[:2]] == ["[0/2] trial 0 failed", "[0/2] trial 1 failed"]
    assert all(line.endswith("exception: KeyError: 'xx' (mine.py:4)") for line in lines[:2])
    assert "KeyError: 'xx' at mine.py:4, in `trial.report(loss=trial.params[\"xx\"])`" in lines[-1]
    assert lines[-1].endswith("its output: runs/mine/logs/trial-000001/lease-1.log")
    # The call in the script and the door of ours that it went through: no stack of ours between.
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert [file.rpartition("/")[2] for file in files] == ["mine.py", "study.py"]
    assert done.returncode == 1


MINE = """\
import trainwright as tw
def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=trial.params["xx"])
if __name__ == "__main__":
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory="runs/mine")
    study.run(train, trials=2, scheduler=tw.ASHA(max_epochs=3), engine=tw.Local(workers=1))
"""

KILLED = """\
import os, signal
import trainwright as tw
def train(trial):
    print(end="x", file=open("begun", "a"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory="runs/killed")
    study.run(train, trials=2, engine=tw.Local(workers=1))
"""
