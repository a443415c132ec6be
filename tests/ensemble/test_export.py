"""An ensemble that predicts: from weights in the library, from an exported folder, and what it refuses."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Ensemble, Library, leave
from trainwright.ensemble.export.folder import manifest_digest
from trainwright.errors import EnsembleError, ExportError

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import networks_for_tests  # noqa: E402

ROWS = {"selection": 80, "calibration": 60, "test": 70}


def data(kind):
    """Return inputs [N, 3] and targets per split."""
    draws = np.random.default_rng(5)
    x = {name: draws.normal(size=(rows, 3)).astype(np.float32) for name, rows in ROWS.items()}
    if kind == "classes":
        return x, {name: (each.sum(axis=1) > 0).astype(np.int64) for name, each in x.items()}
    return x, {name: each.sum(axis=1) + 0.1 * draws.normal(size=len(each)) for name, each in x.items()}


@pytest.fixture(params=["classes", "moments"])
def filled(request, study):
    """Return a study with four networks of one kind, which left weights, and the inputs."""
    x, targets = data(request.param)
    for number in range(4):
        torch.manual_seed(number)
        factory = networks_for_tests.linear if request.param == "classes" else networks_for_tests.pairs
        params = {"outputs": 2}
        network = factory(params)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        for _ in range(3 + number):
            out = network(torch.as_tensor(x["selection"]))
            y = torch.as_tensor(targets["selection"])
            if request.param == "classes":
                loss = torch.nn.functional.cross_entropy(out, y)
            else:
                loss = torch.nn.functional.gaussian_nll_loss(out[:, 0], y.float(), out[:, 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            told = {name: network(torch.as_tensor(each)) for name, each in x.items()}
        told = {name: each.softmax(1) if request.param == "classes" else each for name, each in told.items()}
        trial = study.trial(number, params=params)
        leave(trial, network, predictions=told, targets=targets, sample=x["test"], factory=factory)
    return study, x, request.param


def chosen(study):
    front = study.library().select(BudgetedGreedy(max_members=3))
    return front.ensemble(front.baselines["top-3"]).calibrated()


class TestPredict:
    def test_equals_the_kept_predictions(self, filled):
        """The networks, built again from weights, say what was left, to the precision it was kept in."""
        study, x, kind = filled
        found = chosen(study)
        assert len(found.members) == 3
        predicted = found.predict(x["test"])
        kept = found.predictions("test")
        np.testing.assert_allclose(predicted, kept, rtol=5e-3, atol=2e-3)
        np.testing.assert_allclose(found.predict(torch.as_tensor(x["test"]), batch_rows=7), predicted, atol=1e-5)
        np.testing.assert_allclose(found.predict(x["test"].astype(np.float64)), predicted)
        unsure = found.uncertainty(x["test"])
        np.testing.assert_allclose(unsure.total, unsure.aleatoric + unsure.epistemic, atol=1e-6)
        assert found.threshold > 0
        assert (found.uncertainty(x["test"] * 100).per_row().epistemic > found.threshold).any() or kind == "classes"

    def test_refusals(self, filled):
        study, x, _ = filled
        found = chosen(study)
        with pytest.raises(EnsembleError, match="got list; allowed: a numpy array or a torch tensor"):
            found.predict([[1.0, 2.0, 3.0]])
        with pytest.raises(EnsembleError, match=r"got shape \(0, 3\); allowed: a batch of at least one row"):
            found.predict(x["test"][:0])
        with pytest.raises(EnsembleError, match=r"trial \d refuses x of shape \(\d+, 2\) \(.*Error: .*sample was"):
            found.predict(x["test"][:, :2])
        with pytest.raises(EnsembleError, match="batch_rows: got 0"):
            found.predict(x["test"], batch_rows=0)
        with pytest.raises(EnsembleError, match=r"row 1 of trial \d is not finite"):
            found.predict(np.array([[0, 0, 0], [np.nan, 0, 0]], dtype=np.float32))

    def test_rules(self, filled):
        study, x, kind = filled
        found = chosen(study)
        if kind == "moments":
            with pytest.raises(EnsembleError, match="'mean' for predictions that are moments; allowed: mixture"):
                found.with_rule("mean")
            return
        for rule in ("mean", "stacking"):
            other = found.with_rule(rule)
            assert other.rule.name == rule
            np.testing.assert_allclose(other.predict(x["test"]).sum(axis=1), 1.0)


class TestFolder:
    def test_the_distance_from_the_training_inputs_is_kept(self, filled, tmp_path):
        study, x, _ = filled
        found = chosen(study).with_inputs(x["selection"])
        far = np.concatenate([x["test"], x["test"] + 50])
        scores = Ensemble.load(found.save(tmp_path / "out")).ood_score(far)
        np.testing.assert_allclose(scores, found.ood_score(torch.as_tensor(far)), rtol=1e-3)
        assert scores[: len(x["test"])].max() < scores[len(x["test"]) :].min()
        assert found.ood_score(far, "total").shape == found.ood_score(far, "epistemic").shape == scores.shape

    def test_round_trip(self, filled, tmp_path):
        """The loaded ensemble predicts the same bits without the study, and tells the report it was saved with."""
        study, x, _ = filled
        found = chosen(study)
        folder = found.save(tmp_path / "out")
        report, expected = found.report(), found.predict(x["test"])
        shutil.rmtree(study.directory)
        moved = folder.rename(tmp_path / "elsewhere")
        loaded = Ensemble.load(moved)
        np.testing.assert_array_equal(loaded.predict(x["test"]), expected)
        assert (loaded.weights, loaded.rule, loaded.calibration, loaded.threshold) == (
            found.weights,
            found.rule,
            found.calibration,
            found.threshold,
        )
        assert loaded.report().to_json() == json.loads(json.dumps(report.to_json()))
        assert loaded.cost_seconds == found.cost_seconds
        assert not list(moved.rglob("*.p*kl*"))
        again = loaded.save(tmp_path / "again")
        np.testing.assert_array_equal(Ensemble.load(again).predict(x["test"]), expected)
        with pytest.raises(EnsembleError, match="split: got 'test'; allowed: none"):
            loaded.predictions("test")

    @pytest.mark.parametrize("filled", ["classes"], indirect=True)
    def test_refusals(self, filled, tmp_path, monkeypatch):
        study, x, _ = filled
        found = chosen(study)
        folder = found.save(tmp_path / "out")
        with pytest.raises(ExportError, match="exists already; allowed: a new folder"):
            found.save(folder)
        with pytest.raises(ExportError, match="there is no such folder"):
            Ensemble.load(tmp_path / "nowhere")
        manifest = folder / "manifest.json"
        told = json.loads(manifest.read_text())
        weights = next(folder.rglob("weights.safetensors"))
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ExportError, match="differs from the manifest's digest; export the"):
            Ensemble.load(folder)
        weights.unlink()
        with pytest.raises(ExportError, match=r"weights\.safetensors: is missing; export"):
            Ensemble.load(folder)
        weights.write_bytes(content)
        for change, sentence in (
            ({"schema": 9}, "got schema 9; allowed: 2; install a newer"),
            ({"schema": 1}, "got schema 1; allowed: 2; export the ensemble again"),
            ({"rule": {"name": "magic"}}, "rule: got 'magic'"),
        ):
            manifest.write_text(signed({**told, **change}))
            with pytest.raises(EnsembleError, match=sentence):
                Ensemble.load(folder)
        for text, sentence in (("{", "it is no JSON"), ("{}", "is no manifest of an ensemble")):
            manifest.write_text(text)
            with pytest.raises(ExportError, match=sentence):
                Ensemble.load(folder)
        manifest.write_text(json.dumps(told))
        loaded = Ensemble.load(folder)
        monkeypatch.setattr(networks_for_tests, "linear", lambda params: torch.nn.Linear(3, 5))
        with pytest.raises(ExportError, match="builds another network than the weights are of"):
            loaded.predict(x["test"])
        monkeypatch.delattr(networks_for_tests, "linear")
        with pytest.raises(ExportError, match="'networks_for_tests:linear' cannot be imported"):
            loaded.predict(x["test"])

    @pytest.mark.parametrize("filled", ["classes"], indirect=True)
    def test_changed_by_hand(self, filled, tmp_path):
        """A manifest is what was written: other weights, a threshold or a rule are refused, other spaces are not."""
        study, x, _ = filled
        folder = chosen(study).save(tmp_path / "out")
        manifest = folder / "manifest.json"
        told = json.loads(manifest.read_text())
        for change in ({"weights": [1.0] * len(told["weights"])}, {"threshold": 9.0}, {"more": 1}):
            manifest.write_text(json.dumps({**told, **change}))
            with pytest.raises(ExportError, match=r"manifest\.json: was changed after it was written: its digest is"):
                Ensemble.load(folder)
        manifest.write_text(json.dumps({name: told[name] for name in reversed(told)}, indent=7))
        assert len(Ensemble.load(folder).predict(x["test"])) == ROWS["test"]

    @pytest.mark.parametrize("filled", ["classes"], indirect=True)
    def test_members_lie_inside(self, filled, tmp_path):
        study, _, _ = filled
        folder = chosen(study).save(tmp_path / "out")
        chosen(study).save(tmp_path / "other")
        manifest = folder / "manifest.json"
        told = json.loads(manifest.read_text())
        inside = told["members"][0]["folder"]
        for outside in (f"../other/{inside}", str(tmp_path / "other" / inside)):
            told["members"][0]["folder"] = outside
            manifest.write_text(signed(told))
            with pytest.raises(ExportError, match=r"lies outside of .*; allowed: folders in it"):
                Ensemble.load(folder)


def signed(told):
    """Return a manifest as text with the digest that fits it."""
    return json.dumps({**told, "digest": manifest_digest(told)})


class TestLeave:
    def test_factories(self, study):
        network = torch.nn.Linear(3, 2)
        kept = {"predictions": study.predictions(0), "targets": study.targets}
        for wrong, sentence in (
            (lambda params: network, r"got '.*lambda.*'; allowed: a function at the top level"),
            ("networks_for_tests.linear", r"got 'networks_for_tests\.linear'; allowed: 'module:function'"),
        ):
            with pytest.raises(EnsembleError, match=sentence):
                leave(study.trial(), network, **kept, factory=wrong)
        with pytest.raises(EnsembleError, match="factory: got no model"):
            leave(study.trial(), **kept, factory=networks_for_tests.linear)
        with pytest.raises(EnsembleError, match=r"link: got 'sigmoid' .*allowed: softmax, identity"):
            leave(study.trial(), network, **kept, factory=networks_for_tests.linear, link="sigmoid")
        leave(study.trial(), network, **kept, factory="networks_for_tests:NUMBER")
        with pytest.raises(ExportError, match="is int; allowed: a function of the parameters"):
            study.library().select(BudgetedGreedy()).pick().predict(np.zeros((1, 3)))

    def test_without_weights(self, study, tmp_path):
        study.leave(0)
        found = Library.open(study.directory).select(BudgetedGreedy()).pick()
        for asked in (lambda: found.predict(np.zeros((1, 3))), lambda: found.save(tmp_path / "out")):
            with pytest.raises(EnsembleError, match=r"trial 0: left no weights, so it cannot predict; .*factory="):
                asked()


class TestReport:
    def test_numbers(self, filled):
        """Losses are the scores; a member's gain is what the ensemble loses without it."""
        study, _, kind = filled
        found = chosen(study)
        report = found.report()
        metric = "cross_entropy" if kind == "classes" else "normal_nll"
        assert report.losses["test"] == pytest.approx(found.score("test", metric), abs=1e-3)
        assert [row["weight"] for row in report.members] == sorted(found.weights, reverse=True)
        assert report.before["rows"] == ROWS["test"]
        assert "one busy device" in report.cost
        for row in report.members:
            alone = study.library().select(BudgetedGreedy(max_members=1))
            point = {member: one for one in alone.points for member in one.members}.get(row["trial"])
            assert point is None or row["loss"] == pytest.approx(point.loss, abs=1e-3)
        if kind == "classes":
            assert report.after["nll"] <= report.before["nll"] + 0.5
        else:
            assert report.before["crps"] > 0
