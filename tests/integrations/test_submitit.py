"""submitit: jobs work on one study, leave in time, are requeued, and go on from where they were."""

import sys
import textwrap

import pytest

import trainwright as tw
from trainwright.errors import InputError, MissingExtra

submitit = pytest.importorskip("submitit", reason='submitit is absent; pip install ".[submitit]"')

TRAINING = """
    import time
    from pathlib import Path


    def train(trial):
        trial.checkpoint_with(lambda path: path.write_text("weights"))
        for epoch in trial.epochs():
            with Path("epochs.txt").open("a") as file:
                file.write(f"{trial.number} {epoch}\\n")
            time.sleep(trial.params["seconds"])
            trial.report(loss=trial.params["seconds"] / epoch)
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that makes a study whose epochs take so long, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "submitted_training.py").write_text(textwrap.dedent(TRAINING))
    monkeypatch.delitem(sys.modules, "submitted_training", raising=False)

    def make(seconds, epochs):
        space = tw.Space(seconds=tw.Choice(seconds))
        tw.Study(space, "min loss", directory="study").close()
        return tw.Worker(
            where="study",
            train="submitted_training:train",
            scheduler=tw.FixedEpochs(epochs),
            engine=tw.Local(workers=1),
            searcher=tw.RandomSearcher(),
            grace_seconds=5,
        )

    return make


def state_of(directory):
    with tw.Study.open(directory) as study:
        return study.state


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it does not close its log
def test_a_job_in_this_process(study):
    """The debug executor runs it here."""
    from trainwright.integrations.submitit import submit_workers

    worker = study(0.0, 2)
    [job] = submit_workers(submitit.DebugExecutor("jobs"), worker, trials=1)
    assert job.result() == 1
    assert state_of("study").results == 1


def test_a_time_limit(study, tmp_path):
    """A job whose time is over ends its epoch, is requeued and resumes: no epoch is trained twice."""
    from trainwright.integrations.submitit import submit_workers

    executor = submitit.LocalExecutor("jobs")
    executor.update_parameters(timeout_min=9 / 60, signal_delay_s=3)
    [job] = submit_workers(executor, study(0.5, 16), trials=1)
    assert job.result() == 1
    trial = state_of("study").trials[0]
    assert trial.has_result
    assert len(trial.leases) > 1
    epochs = (tmp_path / "epochs.txt").read_text().split()[1::2]
    assert epochs == [str(epoch) for epoch in range(1, 17)]
    assert "this job is timed-out" in job.stderr()


def test_bad_input(study, monkeypatch):
    from trainwright.integrations.submitit import submit_workers

    worker = study(0.0, 1)
    with tw.Study.open("study") as opened, pytest.raises(InputError, match="got a Worker of an open study; give the"):
        submit_workers(submitit.DebugExecutor("jobs"), tw.Worker(where=opened, train=worker.train))
    monkeypatch.delitem(sys.modules, "trainwright.integrations.submitit")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtra, match=r'needs submitit: pip install "\.\[submitit\]"'):
        __import__("trainwright.integrations.submitit")
