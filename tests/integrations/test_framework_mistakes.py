"""What goes wrong with a framework is one sentence, and what a framework does beside training is not reported."""

import sys
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import MissingExtra

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, about this machine
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # A Trainer without a folder of its own writes where it is.
    monkeypatch.chdir(tmp_path)


def outcome(train, folder=None, objective="min val_loss"):
    """Return the one trial of a study: what it reported, or the sentence of its failure."""
    space = tw.Space(lr=tw.Float(1e-3, 1e-1, log=True))
    with tw.Study(space, objective, directory=folder, seed=0) as study:
        engine, rule = tw.Local(workers=0), tw.FixedEpochs(9)
        try:
            study.run(train, trials=1, searcher=tw.RandomSearcher(), scheduler=rule, engine=engine, progress=False)
        except tw.TrainwrightError as error:
            return str(error)
        return study.trials[0]


def lightning_training(**settings):
    lightning = pytest.importorskip("lightning")
    from lightning_classifier import Classifier, loaders

    from trainwright.integrations.lightning import TrialCallback

    def train(trial):
        quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(**{"max_epochs": 2, **quiet, **settings}, callbacks=[TrialCallback(trial)])
        trainer.fit(Classifier(trial.params["lr"]), *loaders(), ckpt_path=trial.resume_from)

    return train


def transformers_training(**settings):
    transformers = pytest.importorskip("transformers")
    from tiny_text import bert, sentences

    from trainwright.integrations.transformers import TrialCallback

    def train(trial):
        usual = {"num_train_epochs": 2, "eval_strategy": "epoch", "report_to": "none", "use_cpu": True}
        args = transformers.TrainingArguments(disable_tqdm=True, **{**usual, **settings})
        rows = sentences(16)
        trainer = transformers.Trainer(
            bert(), args, train_dataset=rows, eval_dataset=rows, callbacks=[TrialCallback(trial)]
        )
        trainer.train(resume_from_checkpoint=trial.resume_from)

    return train


def test_a_sanity_check_is_no_epoch(tmp_path):
    """Lightning validates an untrained model before the first epoch, with folder and without."""
    for folder in (tmp_path / "study", None):
        trial = outcome(lightning_training(num_sanity_val_steps=2), folder)
        assert sorted(trial.reports) == [1, 2]


def test_an_objective_that_lightning_never_logs(tmp_path):
    said = outcome(lightning_training(), tmp_path / "study", "min valid_loss")
    assert "measured train_loss, val_acc, val_loss, and the study's objective valid_loss is not among them" in said
    assert "log it in validation_step" in said


def test_a_lightning_trainer_that_validates_nothing(tmp_path):
    said = outcome(lightning_training(limit_val_batches=0), tmp_path / "study")
    assert "the study's objective val_loss is not among them" in said


def test_a_trainer_without_evaluation(tmp_path):
    said = outcome(transformers_training(eval_strategy="no"), tmp_path / "study", "min eval_loss")
    assert "this Trainer evaluates nothing (eval_strategy='no')" in said
    assert "TrainingArguments(eval_strategy='epoch')" in said


def test_an_objective_that_a_trainer_never_measures(tmp_path):
    said = outcome(transformers_training(), tmp_path / "study", "min val_loss")
    assert "measured eval_loss, and the study's objective val_loss is not among them" in said
    assert "objectives='min eval_loss'" in said


def test_evaluation_before_training_is_no_epoch(tmp_path):
    """`eval_on_start` measures an untrained model; without a folder nothing is saved, and all is reported."""
    for folder in (tmp_path / "study", None):
        trial = outcome(transformers_training(eval_on_start=True), folder, "min eval_loss")
        assert sorted(trial.reports) == [1, 2]
        assert set(trial.reports[1].metrics) == {"eval_loss"}


def test_hyperparameter_search_of_a_trainer(tmp_path):
    """Each trial is the training that its arguments alone make; a second call finds nothing to do."""
    transformers = pytest.importorskip("transformers")
    from tiny_text import bert, sentences

    from trainwright.integrations.transformers import TrialCallback, hyperparameter_search

    rows = sentences(16)

    def make(**settings):
        usual = {"num_train_epochs": 2, "eval_strategy": "epoch", "report_to": "none", "use_cpu": True}
        args = transformers.TrainingArguments(disable_tqdm=True, **{**usual, **settings})
        return transformers.Trainer(None, args, train_dataset=rows, eval_dataset=rows, model_init=lambda _=None: bert())

    space = tw.Space(learning_rate=tw.Float(1e-4, 1e-1, log=True), per_device_train_batch_size=tw.Choice(4, 8))
    options = {"n_trials": 3, "directory": tmp_path / "study", "searcher": tw.RandomSearcher(), "progress": False}
    best = hyperparameter_search(make(), space, **options)
    assert hyperparameter_search(make(), space, **options) == best
    with tw.Study.open(tmp_path / "study") as study:
        trials = study.trials
    assert best.objective == min(trial.values["eval_loss"] for trial in trials)
    for trial in trials:
        trainer = make(**trial.params)
        trainer.train()
        alone = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        assert [trial.reports[epoch].metrics["eval_loss"] for epoch in (1, 2)] == alone
    with pytest.raises(tw.TrainwrightError, match="give Trainer\\(model_init=function\\)"):
        hyperparameter_search(transformers.Trainer(bert(), trainer.args, eval_dataset=rows), space)
    assert TrialCallback.__name__ not in str(trainer.callback_handler.callback_list)


def test_accelerate_without_its_accelerator_or_a_model(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from trainwright.integrations.accelerate import epochs

    said = outcome(lambda trial: epochs(trial, object()), tmp_path / "study")
    assert "epochs: got object in place of the accelerator" in said
    said = outcome(lambda trial: epochs(trial, accelerate.Accelerator(cpu=True)), tmp_path / "other")
    assert "the accelerator has no model, so nothing could be saved; call accelerator.prepare(" in said


def test_two_ways_of_saving_are_refused(tmp_path):
    def train(trial):
        trial.checkpoint_with(lambda path: path.touch())
        trial.checkpoint_with(lambda path: path.touch())

    assert "its checkpoints are saved already; use one way, and once" in outcome(train, tmp_path / "study")


@pytest.mark.parametrize("damage", ["cut", "marker", "gone"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    """The one before it counts; without any whole one the trial would begin again."""
    from trainwright.train.framework_checkpoints import newest_checkpoint

    def train(trial):
        trial.checkpoint_with(lambda path: path.write_text("state" * 100))
        for _ in trial.epochs(3):
            trial.report(val_loss=1.0)

    outcome(train, tmp_path / "study")
    folder = tmp_path / "study" / "files" / "trial-000000"
    assert newest_checkpoint(folder).report["epoch"] == 3
    assert len([*folder.iterdir()]) == 4
    newest = folder / "epoch-000003-lease-000001"
    if damage == "cut":
        newest.write_text("state")
    elif damage == "marker":
        newest.with_name(newest.name + ".json").write_text('{"report"')
    else:
        newest.unlink()
    assert newest_checkpoint(folder).report["epoch"] == 2


def test_an_old_torch_is_told_by_what_needs_a_newer_one(monkeypatch):
    """Plans and profiles; training on one device does without."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.4.1+cu121")
    model, sample = torch.nn.Linear(2, 2), torch.zeros(1, 2)
    for call in (lambda: tw.memory.fit(model, sample, budget=0.5), lambda: tw.Profile.trace(model, sample)):
        with pytest.raises(MissingExtra, match=r"torch is 2\.4\.1\+cu121; needed is 2\.11 or newer \(pip install"):
            call()
    assert not isinstance(outcome(lambda trial: {"val_loss": trial.params["lr"]}), str)
