"""Population-based training in a study: clones go on from the exact state of their parents."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import ScheduleError, StudyError
from trainwright.ledger import Status
from trainwright.ledger.trials import Exploit
from trainwright.study import StudyFailed

torch = pytest.importorskip("torch")

HERE = tw.Local(workers=0)
SPACE = tw.Space(lr=tw.Float(1e-4, 1.0, log=True), momentum=tw.Float(0.0, 0.9), width=tw.Int(2, 3))


def rule(**changes):
    return tw.PopulationBasedTraining(
        **{"max_epochs": 8, "perturb": ("lr", "momentum"), "population": 4, "interval": 2, **changes}
    )


def train(trial):
    """Fit a line; note the weights before and after each epoch, to the last bit."""
    torch.manual_seed(trial.number)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=trial.params["momentum"])
    x = torch.arange(12.0).reshape(4, 3) / 12
    run = trial.prepare(
        model, optimizer, [x], loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean()
    )
    for epoch in trial.epochs():
        trial.note(f"before {epoch}", state_of(model, optimizer))
        for batch in run.loader:
            loss = run.step(batch + 0.01 * torch.rand_like(batch))
        trial.note(f"after {epoch}", state_of(model, optimizer))
        trial.report(loss=float(loss))


def state_of(model, optimizer):
    """Return weights, momenta, the state of the generator, and the rate."""
    momenta = [state["momentum_buffer"].tolist() for state in optimizer.state.values() if "momentum_buffer" in state]
    weights = [weight.tolist() for weight in model.parameters()]
    group = optimizer.param_groups[0]
    drawn = int(torch.get_rng_state().long().sum())
    return json.dumps([weights, momenta, drawn]), group["lr"], group["momentum"]


def run(directory, *, trials=10, scheduler=None, function=train, engine=HERE, **options):
    study = tw.Study(SPACE, "min loss", directory=directory, seed=3, searcher=tw.RandomSearcher())
    study.run(function, trials=trials, scheduler=scheduler or rule(), engine=engine, progress=False, **options)
    return study


def notes_of(study):
    return {(number, name): value for number, name, value in study.state.notes.values() if number is not None}


def history(study):
    """Return what was decided and learnt, without times."""
    return [
        (t.params, t.exploits, t.status, {epoch: report.metrics for epoch, report in t.reports.items()})
        for t in study.trials
    ]


def clones_of(study):
    return [trial for trial in study.trials if trial.exploits is not None]


def test_a_clone_goes_on_from_its_parents_exact_state(tmp_path):
    """Weights, momenta and generator are the parent's to the last bit; rate and momentum are the clone's own."""
    study = run(tmp_path / "study")
    found, clones = notes_of(study), clones_of(study)
    assert len(clones) >= 2
    for clone in clones:
        parent, epoch, replaces = clone.exploits
        state, lr, momentum = found[clone.number, f"before {epoch + 1}"]
        assert state == found[parent, f"after {epoch}"][0]
        assert (lr, momentum) == (clone.params["lr"], clone.params["momentum"])
        assert min(clone.reports) == epoch + 1
        assert clone.leases[1].resumed_epoch == epoch
        assert study.state.trials[replaces].status is Status.STOPPED
        before = study.state.trials[parent].params
        assert clone.params["width"] == before["width"]
        assert clone.params["lr"] != before["lr"]
        assert clone.origin == {"searcher": "PopulationBasedTraining"}
    assert any(
        found[c.number, f"before {c.exploits.epoch + 1}"][1] != found[c.exploits.parent, "after 1"][1] for c in clones
    )


def test_a_rerun_is_the_same(tmp_path):
    """Parents and perturbations follow from the seed and the numbers."""
    assert history(run(tmp_path / "one")) == history(run(tmp_path / "two"))


def test_an_interrupted_study_goes_on_as_one_that_was_not(tmp_path):
    """Each clone's first run is interrupted before it saved: the second begins from the parent's state as well."""
    whole = run(tmp_path / "whole")

    def dies(trial):
        if trial.number >= 4 and trial.assignment.lease == 1:
            raise KeyboardInterrupt
        train(trial)

    for _ in range(20):
        try:
            parts = run(tmp_path / "parts", function=dies)
            break
        except KeyboardInterrupt:
            pass
    assert history(parts) == history(whole)
    assert any(len(trial.leases) > 1 for trial in clones_of(parts))


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
import test_population as given
from trainwright.study.driver import {module} as module

def die_after(*arguments):
    if {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    whole(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

whole, module.{name} = module.{name}, die_after
given.run({directory!r})
"""


@pytest.mark.parametrize(
    ("module", "name", "before"),
    [
        pytest.param("trial_queue", "link_parent_checkpoint", False, marks=pytest.mark.slow),
        pytest.param("driver", "move_to_clone", True, marks=pytest.mark.slow),
        ("driver", "move_to_clone", False),
    ],
    ids=["put by", "proposed", "handed over"],
)
def test_killed_while_a_clone_is_made(tmp_path, module, name, before):
    """Between the link to its parent's state and its proposal, before its start, and just before that."""
    parts = tmp_path / "parts"
    code = KILLED.format(here=str(Path(__file__).parent), module=module, name=name, before=before, directory=str(parts))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert history(run(parts)) == history(run(tmp_path / "whole"))
    assert not list((parts / "checkpoints").glob("*/put-by"))


def test_nothing_is_left_put_by(tmp_path):
    """The parent's state is with the clone once it has started."""
    study = run(tmp_path)
    assert clones_of(study)
    assert not list((tmp_path / "checkpoints").glob("*/put-by"))


def test_several_workers(tmp_path):
    """With processes of their own, fewer than the population: those that are ahead wait for the others."""
    study = run(tmp_path, engine=tw.Local(workers=2), trials=8)
    found = notes_of(study)
    assert all(
        found[c.number, f"before {c.exploits.epoch + 1}"][0] == found[c.exploits.parent, f"after {c.exploits.epoch}"][0]
        for c in clones_of(study)
    )
    assert study.best.epoch == 8


def test_the_lineage_tells_which_parameters_were_trained_with(tmp_path):
    """Of the best trial: from epoch 1 to its end without a gap, each part with the parameters of its trial."""
    study = run(tmp_path)
    parts = study.lineage(clones_of(study)[-1].number)
    assert parts[0].first == 1
    assert [part.first for part in parts[1:]] == [part.last + 1 for part in parts[:-1]]
    assert all(part.params == study.state.trials[part.trial].params for part in parts)
    assert len(parts) >= 2
    assert study.lineage()[-1].trial == study.best.number


def test_nothing_to_take_over(tmp_path):
    """A training function that saves nothing ends the study, with the sentence that says what to do."""

    def forgets(trial):
        for epoch in trial.epochs():
            trial.report(loss=trial.params["lr"] + 1 / epoch)

    with pytest.raises(StudyError, match=r"has saved no checkpoint, .*; save with trial.prepare or a tw.checkpoint"):
        run(tmp_path, function=forgets)


def test_a_checkpoint_that_is_not_restored(tmp_path):
    """A function that saves and does not restore would train its clones from the start: it is told."""

    def saves(trial):
        tw.checkpoint.Manager(trial, x=torch.zeros(1))
        for epoch in trial.epochs():
            trial.report(loss=trial.params["lr"] + 1 / epoch)

    with pytest.raises(StudyFailed, match=r"continues another trial's checkpoint of epoch \d, and reported epoch 1"):
        run(tmp_path, function=saves)


def test_what_cannot_be_perturbed(tmp_path):
    """A study without a folder, a space without numbers, a budget below the population, a quantile of nobody."""
    with pytest.raises(StudyError, match="the study keeps nothing on disk"):
        run(None)
    study = tw.Study(tw.Space(a=tw.Choice("x", "y")), "min loss", directory=tmp_path)
    with pytest.raises(ScheduleError, match=r"perturb: got 'a'; allowed: none: the space has no Float and no Int"):
        study.run(train, trials=9, scheduler=rule(perturb=("a",)), engine=HERE)
    with pytest.raises(ScheduleError, match=r"population: got 4, the budget has 3 trials; allowed: 2 to 3"):
        run(tmp_path / "few", trials=3)
    with pytest.raises(ScheduleError, match=r"quantile: got 0.2, less than one of a population of 4; allowed: 0.25"):
        rule(quantile=0.2)
    with pytest.raises(ScheduleError, match=r"interval: got 8, not below max_epochs 8"):
        rule(interval=8)
    with pytest.raises(ScheduleError, match=r"perturb: got \(\); allowed: names of Float and Int"):
        rule(perturb=())


def test_perturbations_stay_in_the_space():
    """Within bounds, conditions and requirements; a whole number moves, and what is not named stays to the bit."""
    space = tw.Space(
        tw.require("low <= high"),
        low=tw.Float(0, 1),
        high=tw.Float(0, 1),
        kind=tw.Choice("a", "b"),
        count=tw.Int(1, 9),
        rate=tw.Float(1e-5, 1, log=True),
        extra=tw.Float(1, 2, when=tw.greater("count", 4)),
    )
    changing = rule(perturb=("low", "count"), resample=0.0)
    for number in range(100):
        (row,) = space.sample(tw.randomness.rng(0, "test", number), 1)
        parent = space.configuration(row)
        clone = changing.clone_of(space, parent, seed=0, number=number)
        assert not space.check(clone.params)
        assert {name: clone[name] for name in ("high", "kind", "rate")} == {
            name: parent[name] for name in ("high", "kind", "rate")
        }
        assert ("extra" in clone) == (clone["count"] > 4)
        assert clone["count"] != parent["count"] or parent["count"] in {1, 9} or clone == parent
        assert clone == changing.clone_of(space, parent, seed=0, number=number)


def test_a_simulated_study():
    """Clones begin where their parents are: the study's epochs are fewer than all trials' from the start."""
    study = tw.Study(SPACE, "min loss", seed=0)
    engine = tw.Simulated(cluster=tw.Cluster(1, 4), task=tw.Parametric())
    found = study.simulate(rule(), engine=engine, trials=12, seeds=3)
    whole = study.simulate(tw.FixedEpochs(8), engine=engine, trials=12, seeds=3)
    assert found.makespan_seconds.mean < whole.makespan_seconds.mean
    assert found == study.simulate(rule(), engine=engine, trials=12, seeds=3)


def test_a_clone_is_in_the_ledger_as_it_was_made(tmp_path):
    """Read again, the records tell the same."""
    study = run(tmp_path)
    study.close()
    again = tw.Study.open(tmp_path)
    assert history(again) == history(study)
    assert all(isinstance(trial.exploits, Exploit) for trial in clones_of(again))
