"""A trial that restarts at epoch 1 though it had reported: it is said, unless it goes on from files of its own."""

import subprocess
import sys

import pytest

import trainwright as tw
from trainwright.errors import TrialError

SCRIPT = """\
import os, signal, sys
import trainwright as tw

def train(trial):
    own = "own" in sys.argv
    kept = trial.folder / "epoch" if own else None
    first = int(kept.read_text()) + 1 if own and kept.exists() else 1
    for epoch in trial.epochs():
        if epoch < first:
            continue
        print(epoch, end=" ", file=open("begun.txt", "a"))
        if epoch == 4 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if own:
            kept.write_text(str(epoch))
        trial.report(loss=trial.params["x"])

if __name__ == "__main__":
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory="study")
    study.run(train, trials=1, scheduler=tw.FixedEpochs(5), engine=tw.Local(workers=%d))
"""


@pytest.mark.parametrize("own", [False, True])
def test_a_killed_trial_without_checkpoints(tmp_path, own):
    """Killed in its process, or with its driver: the next run of it is told of."""
    (tmp_path / "naive.py").write_text(SCRIPT % (0 if own else 1))
    command = [sys.executable, "naive.py", *(["own"] if own else [])]
    runs = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)]
    if own:  # in its driver's process: that died with it
        assert runs[0].returncode < 0
        runs.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False))
    assert runs[-1].returncode == 0
    said = "".join(run.stderr for run in runs)
    begun = (tmp_path / "begun.txt").read_text().split()
    if own:
        assert begun == ["1", "2", "3", "4", "4", "5"]
        assert "begins again" not in said
    else:
        assert begun == ["1", "2", "3", "4", "1", "2", "3", "4", "5"]
        assert "trial 0 restarts at epoch 1: it had reported up to epoch 3 and saved no checkpoint" in said


def test_the_folder_is_the_trials_own_and_needs_a_directory(tmp_path):
    places = []

    def train(trial):
        places.append(trial.folder)
        return 1.0

    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path / "study")
    study.run(train, trials=2, engine=tw.Local(workers=0), progress=False)
    assert len({*places}) == 2
    assert all(place.is_dir() and place.is_relative_to(tmp_path / "study") for place in places)
    with pytest.raises(tw.StudyFailed, match="the study keeps nothing on disk"):
        tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss").run(
            train, trials=1, engine=tw.Local(workers=0), progress=False
        )


def test_an_optimizer_in_a_wrapper_without_hooks_is_a_sentence(tmp_path, torch):
    class Wrapped(torch.optim.Optimizer):
        """As accelerate's: an optimizer by type that never ran the constructor."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    def train(trial):
        model = torch.nn.Linear(2, 1)
        with pytest.raises(TrialError, match=r"wrapped in Wrapped, .* trial.prepare .* first, and accelerator.prepare"):
            trial.prepare(model, Wrapped(torch.optim.SGD(model.parameters(), lr=0.1)))
        return 1.0

    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path / "study")
    study.run(train, trials=1, engine=tw.Local(workers=0), progress=False)
    assert study.state.results == 1
