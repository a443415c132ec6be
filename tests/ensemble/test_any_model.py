"""Members that are no torch networks: left, selected, exported, loaded elsewhere, and what is refused."""

import io
import os
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Ensemble, leave
from trainwright.errors import EnsembleError, ExportError, MixedSplitsError, PredictionError

torch = pytest.importorskip("torch")
sklearn = pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parent))

import estimators_for_tests as estimators  # noqa: E402
import networks_for_tests  # noqa: E402
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # noqa: E402

draws = np.random.default_rng(0)
X = {name: draws.normal(size=(rows, 3)).astype(np.float32) for name, rows in {"selection": 80, "test": 60}.items()}
LABELS = {name: (x.sum(axis=1) > 0).astype(np.int64) for name, x in X.items()}
VALUES = {name: x.sum(axis=1).astype(np.float64) for name, x in X.items()}
WEIGHTS = np.array([0.5, 1.0, 2.0])


def left_callable(study, number=0, model=None, **more):
    model = estimators.Logistic(WEIGHTS) if model is None else model
    told = {name: estimators.Logistic(WEIGHTS)(x) for name, x in X.items()}
    saved = io.BytesIO()
    np.save(saved, WEIGHTS)
    settings = {"factory": estimators.load_logistic, "files": {"weights.npy": saved.getvalue()}, **more}
    return leave(study.trial(number), model, predictions=told, targets=LABELS, sample=X["test"], **settings)


def left_estimator(study, tmp_path, number, model, targets):
    model.fit(X["selection"], targets["selection"])
    predict = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    path = tmp_path / f"{number}.joblib"
    joblib.dump(model, path)
    told = {name: predict(x) for name, x in X.items()}
    return leave(
        study.trial(number),
        model,
        predictions=told,
        targets=targets,
        sample=X["test"],
        factory=estimators.load_estimator,
        files={"model.joblib": path},
    )


def left_network(study, number):
    torch.manual_seed(number)
    network = torch.nn.Linear(3, 2)
    told = {name: network(torch.as_tensor(x)).softmax(1) for name, x in X.items()}
    return leave(
        study.trial(number, params={"outputs": 2}),
        network,
        predictions=told,
        targets=LABELS,
        sample=X["test"],
        factory=networks_for_tests.linear,
    )


def test_one_library_of_all(study, tmp_path):
    """A callable, boosted trees and a network: the export says in a fresh process what the members said."""
    left_callable(study)
    left_estimator(study, tmp_path, 1, HistGradientBoostingClassifier(max_iter=5), LABELS)
    left_network(study, 2)
    front = study.library().select(BudgetedGreedy(max_members=3))
    chosen = front.ensemble(front.baselines["top-3"])
    assert [member.trial for member in chosen.members] == [0, 1, 2]
    assert all(member.seconds_per_row > 0 and member.weight_bytes > 0 for member in chosen.members)
    np.testing.assert_allclose(chosen.predict(X["test"]), chosen.predictions("test"), atol=2e-3)
    chosen.save(tmp_path / "out")
    np.save(tmp_path / "x.npy", X["test"])
    code = (
        "import numpy as np, trainwright as tw\n"
        "np.save('y.npy', tw.Ensemble.load('out').predict(np.load('x.npy'), batch_rows=7))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), chosen.predict(X["test"]), atol=1e-6)
    again = Ensemble.load(Ensemble.load(tmp_path / "out").save(tmp_path / "again"))
    np.testing.assert_array_equal(again.predict(X["test"]), Ensemble.load(tmp_path / "out").predict(X["test"]))


def test_values(study, tmp_path):
    left_estimator(study, tmp_path, 0, HistGradientBoostingRegressor(max_iter=5), VALUES)
    found = Ensemble.load(study.library().select(BudgetedGreedy()).pick().save(tmp_path / "out"))
    assert found.predict(X["test"]).shape == (60, 1)
    np.testing.assert_allclose(found.uncertainty(X["test"]).total, 0)


def test_files_are_verified(study, tmp_path):
    left_callable(study)
    folder = study.library().select(BudgetedGreedy()).pick().save(tmp_path / "out")
    [file] = folder.rglob("weights.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ExportError, match=r"weights\.npy: its content differs from the manifest's digest"):
        Ensemble.load(folder)


def test_cannot_be_made_self_contained(study, tmp_path):
    pytest.importorskip("onnxruntime")
    left_callable(study)
    with pytest.raises(ExportError, match="trial 0: is loaded by its factory from its own files; allowed: torch"):
        study.library().select(BudgetedGreedy()).pick().save(tmp_path / "out", self_contained=True)


@pytest.mark.parametrize(
    ("more", "error", "sentence"),
    [
        ({"files": None}, EnsembleError, "factory: got a model that is Logistic and no files; allowed: a torch"),
        ({"factory": None}, EnsembleError, "leave, files: got no factory; allowed: both"),
        ({"export": True}, EnsembleError, "export: got a model that is Logistic; allowed: a torch"),
        ({"files": {"../up": b""}}, EnsembleError, r"files\['../up'\]: got this name; allowed: letters"),
        ({"files": {"a": 1}}, EnsembleError, r"files\['a'\]: got int; allowed: bytes, or the path"),
        ({"files": {"a": "/nowhere"}}, EnsembleError, r"files\['a'\]: /nowhere cannot be read"),
        ({"model": 3}, EnsembleError, "got int; allowed: a torch module, an estimator"),
        ({"model": "/nowhere.onnx"}, EnsembleError, "'/nowhere.onnx', which cannot be read"),
        ({"model": lambda x: np.ones((len(x), 3))}, EnsembleError, r"of shape \(128, 3\) .*allowed: .*\(128, 2\)"),
        ({"model": lambda x: ["a"] * len(x)}, EnsembleError, r"predicts <U1 of shape .*allowed: numbers of shape"),
        ({"model": lambda x: np.ones((len(x), 2))}, PredictionError, "row 0 of the sample sums to 2; allowed: prob"),
        ({"classes": ["a"]}, EnsembleError, r"classes: got \['a'\] for predictions \[N, 2\].*a name for each column"),
        ({"snapshots": 0}, EnsembleError, "snapshots: got 0; allowed: an integer >= 1"),
    ],
)
def test_refused(study, more, error, sentence):
    with pytest.raises(error, match=sentence):
        left_callable(study, **more)
    assert not (study.directory / "library").exists()


def test_classes_in_another_order(study, tmp_path):
    """An estimator that was fitted to other names, and members whose columns have other names or another order."""
    model = HistGradientBoostingClassifier(max_iter=2).fit(X["selection"], np.where(LABELS["selection"], "b", "a"))
    with pytest.raises(EnsembleError, match=r"columns are of the classes \[.*'a'.*'b'.*\]; allowed: 0 to 1 in that"):
        left_callable(study, model=model)
    left_callable(study, 0, classes=["cat", "dog"])
    left_callable(study, 1, classes=["dog", "cat"])
    with pytest.raises(
        MixedSplitsError, match=r"classes: got 2 different orders: cat, dog: trial 0; dog, cat: trial 1"
    ):
        study.library()


def test_another_shape_when_it_is_loaded(study):
    """What the factory loads predicts three classes where two were left."""
    left_callable(study, factory=estimators.load_other)
    with pytest.raises(EnsembleError, match=r"trial 0, .*load_other: predicts .*\(60, 3\) .*allowed: .*\(60, 2\)"):
        study.library().select(BudgetedGreedy()).pick().predict(X["test"])


def test_snapshots(study):
    """The last two epochs of a trial are members; a trial without snapshots has one, and replaces what it left."""
    for epoch in (1, 2, 3):
        told = {"predictions": study.predictions(epoch), "targets": study.targets}
        leave(study.trial(0, next_epoch=epoch), **told, snapshots=2)
        leave(study.trial(1, next_epoch=epoch), **told)
    found = study.library()
    assert [(member.trial, member.epoch) for member in found.members] == [(0, 2), (0, 3), (1, 3)]
    front = found.select(BudgetedGreedy(max_members=3))
    chosen = front.ensemble(front.baselines["top-3"])
    assert [(member.trial, member.epoch) for member in chosen.members] == [(0, 2), (0, 3), (1, 3)]
    by_hand = (study.predictions(2)["test"] + 2 * study.predictions(3)["test"]) / 3
    np.testing.assert_allclose(chosen.predictions("test"), by_hand, atol=1e-3)
    # A resumed trial's later lease counts with what the earlier one left.
    leave(study.trial(0, next_epoch=4, lease=2), predictions=study.predictions(4), targets=study.targets, snapshots=2)
    assert [(member.trial, member.epoch) for member in study.library().members] == [(0, 3), (0, 4), (1, 3)]


def test_out_of_fold(study, tmp_path):
    """Each row by the model that did not see it; the mean of the models is a member like any other."""
    from trainwright.ensemble import out_of_fold

    found = out_of_fold(HistGradientBoostingClassifier(max_iter=3).fit, X["selection"], LABELS["selection"], folds=4)
    assert len(found.models) == 4
    assert found.predictions.shape == (80, 2)
    inside = found(X["selection"])
    rows, labels = np.arange(80), LABELS["selection"]
    assert np.log(inside[rows, labels]).mean() > np.log(found.predictions[rows, labels]).mean()  # it saw these rows
    path = tmp_path / "model.joblib"
    joblib.dump(found, path)
    told = {"selection": found.predictions, "test": found(X["test"])}
    kept = {"factory": estimators.load_estimator, "files": {"model.joblib": path}, "sample": X["test"]}
    leave(study.trial(0), found, predictions=told, targets=LABELS, **kept)
    np.testing.assert_allclose(
        study.library().select(BudgetedGreedy()).pick().predict(X["test"]), told["test"], atol=1e-3
    )
    values = out_of_fold(HistGradientBoostingRegressor(max_iter=3).fit, X["test"], VALUES["test"])
    assert values.predictions.shape == values(X["test"]).shape == (60, 1)
    with pytest.raises(EnsembleError, match="got 1 folds of 60 rows and 60 targets; allowed: 2 folds or more"):
        out_of_fold(HistGradientBoostingRegressor().fit, X["test"], VALUES["test"], folds=1)
