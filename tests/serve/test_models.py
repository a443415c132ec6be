"""Several models and versions behind one address: loaded, replaced under load, unloaded, and broken ones refused."""

import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, body, ensemble, inputs, values

from trainwright.ensemble import Ensemble
from trainwright.serve import Client, Deployment, DeploymentPlan, ModelFolders, Server

X = inputs(3)


def start(folder):
    found = Ensemble.load(folder)
    return Deployment(found, DeploymentPlan.simple(found, "cpu", in_process=True)).start()


def export(place, target, hidden):
    """Export an ensemble of its own to a folder in one step, in place of what is there, and return it."""
    found = ensemble(place / f"members-{hidden}", [{"hidden": hidden}])
    found.save(place / f"export-{hidden}")
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    (place / f"export-{hidden}").rename(target)
    return found


def load(server, name, action="load"):
    return HTTP.post(f"{server.url}/v2/repository/models/{name}/{action}", json={}, timeout=60)


def ask(server, path, **changes):
    return HTTP.post(f"{server.url}/v2/models/{path}/infer", json=body(X, **changes))


@pytest.fixture
def place(tmp_path):
    found = {("a", "1"): export(tmp_path, tmp_path / "models/a/1", 2)}
    found["a", "2"] = export(tmp_path, tmp_path / "models/a/2", 3)
    found["b", "1"] = export(tmp_path, tmp_path / "models/b", 4)
    return tmp_path, found


def test_names_and_versions(place):
    """Each is found by its name and version, without a version the newest."""
    folder, found = place
    with Server(ModelFolders(folder / "models", start), port=0) as server:
        for path, key in (("a", ("a", "2")), ("a/versions/1", ("a", "1")), ("b", ("b", "1"))):
            reply = ask(server, path)
            assert (reply.json()["model_name"], reply.json()["model_version"]) == key
            np.testing.assert_allclose(values(reply), found[key].predict(X), atol=1e-6)
        assert HTTP.get(f"{server.url}/v2/models/a").json()["versions"] == ["1", "2"]
        index = HTTP.post(f"{server.url}/v2/repository/index").json()
        assert [(one["name"], one["version"], one["state"]) for one in index] == [(*key, "READY") for key in found]
        assert ask(server, "a/versions/3").json()["error"] == "version: got '3'; allowed: 1, 2"
        assert 'trainwright_ready{model="a",version="2"} 1.0' in HTTP.get(f"{server.url}/metrics").text
        with Client(server.url, name="b") as client:
            np.testing.assert_allclose(client.predict(X), found["b", "1"].predict(X), atol=1e-6)
        assert load(server, "b", "unload").status_code == 200
        assert ask(server, "b").status_code == 404
        index = HTTP.post(f"{server.url}/v2/repository/index").json()
        assert index[-1] == {"name": "b", "version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
        assert load(server, "b").status_code == 200
        assert ask(server, "b").status_code == 200


def test_replaced_under_load(place):
    """No answer is lost, and each is of one model as a whole: the old one, then the new one."""
    folder, found = place
    target = folder / "models/b"
    expected = [found["b", "1"].predict(X)]
    seen, wrong, stop = [], [], threading.Event()
    with Server(ModelFolders(folder / "models", start), port=0) as server:

        def client():
            while not stop.is_set():
                reply = ask(server, "b")
                if reply.status_code != 200:
                    wrong.append(reply.text)
                    continue
                answers = [np.allclose(values(reply), one, atol=1e-6) for one in expected]
                seen.append(answers.index(True)) if sum(answers) == 1 else wrong.append(answers)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for hidden in (5, 6, 7):
            time.sleep(0.2)
            new = export(folder, folder / "next", hidden)
            expected.append(new.predict(X))
            shutil.rmtree(target)
            (folder / "next").rename(target)
            assert load(server, "b").status_code == 200
        time.sleep(0.2)
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert set(seen) == {0, 1, 2, 3}


def test_broken_models_change_nothing(place):
    """Whatever is wrong with it is said in a sentence, and the one before answers."""
    folder, found = place
    target = folder / "models/b"
    with Server(ModelFolders(folder / "models", start), port=0) as server:
        manifest = target / "manifest.json"
        whole = manifest.read_text()
        for content, words in (
            (whole[:100], "manifest.json"),
            (whole.replace('"weights"', '"heights"', 1), "is no manifest"),
        ):
            manifest.write_text(content)
            refused = load(server, "b")
            assert refused.status_code == 400
            assert words in refused.json()["error"]
            assert "what was loaded before still answers: version 1" in refused.json()["error"]
            np.testing.assert_allclose(values(ask(server, "b")), found["b", "1"].predict(X), atol=1e-6)
        index = HTTP.post(f"{server.url}/v2/repository/index").json()
        assert (index[-1]["state"], "cannot" in index[-1]["reason"] or bool(index[-1]["reason"])) == ("READY", True)
        refused = load(server, "c")
        assert (refused.status_code, "'c' cannot be loaded; allowed: a, b" in refused.json()["error"]) == (400, True)


def test_one_export_is_loaded_again(tmp_path):
    """With the folder itself as the only model, under its name."""
    export(tmp_path, tmp_path / "out", 2)
    with Server(ModelFolders(tmp_path / "out", start, name="digits"), port=0) as server:
        before = values(ask(server, "digits"))
        new = export(tmp_path, tmp_path / "out", 3)
        assert load(server, "digits").status_code == 200
        after = values(ask(server, "digits"))
        np.testing.assert_allclose(after, new.predict(X), atol=1e-6)
        assert np.abs(after - before).max() > 1e-3


def test_expected_and_reached_stand_side_by_side(tmp_path, monkeypatch):
    """What is reached is counted between two looks, at least a second apart."""
    found, now = ensemble(tmp_path, [{}]), [50.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("trainwright.serve.deployment.time", clock)
    with Deployment(found, DeploymentPlan.simple(found, "cpu", in_process=True)) as service:
        reached = []
        # A look that comes too soon tells what the one before did.
        for later, requests in ((4.0, 8), (0.5, 3), (0.5, 1)):
            for _ in range(requests):
                service.predict(X)
            now[0] += later
            state = service.state()
            reached.append(state["reached_rows_per_second"] / len(X))
        assert state["expected_rows_per_second"] == 0.0  # of a plan that was not measured
        assert reached == [2.0, 2.0, 4.0]
