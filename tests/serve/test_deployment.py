"""A deployment with real workers: its answers are those of the ensemble in process, for any rows and options."""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from trainwright.errors import NotReady, RequestError, ServeConfigError
from trainwright.serve import Deployment, DeploymentPlan, Options
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import parse_devices
from trainwright.serve.placement.units import Unit

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import served_networks as networks


def plan_of(ensemble, units=None, batches=None, devices="cpu:0"):
    """Return a plan with all members in one process, or with these units and batches."""
    members = tuple(range(len(ensemble.members)))
    units = units or (Unit(members=members),)
    found = parse_devices(devices)
    matrix = batches or tuple((32,) * len(units) for _ in found)
    return DeploymentPlan(ensemble=digest_of(ensemble), devices=found, units=tuple(units), matrix=matrix)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    params = [{"hidden": 4}, {"hidden": 8}, {"hidden": 2}]
    ensemble = networks.ensemble(tmp_path_factory.mktemp("served"), params, weights=[0.5, 0.3, 0.2])
    with Deployment(ensemble, plan_of(ensemble)) as service:
        yield service


class TestAnswers:
    def test_any_number_of_rows(self, served):
        """1 to 1,000 rows: in one slot, cut to batches, in several slots."""
        for rows in (1, 2, 31, 33, 127, 128, 129, 500, 1000):
            x = networks.inputs(rows, seed=rows)
            np.testing.assert_allclose(served.predict(x), served.ensemble.predict(x), atol=1e-6, rtol=0)

    def test_mixed_requests(self, served):
        """Rows of many requests share segments, and each gets its own back."""
        asked = [networks.inputs(1 + number % 17, seed=number) for number in range(200)]
        answers = [served.submit(x) for x in asked]
        for x, answer in zip(asked, answers, strict=True):
            np.testing.assert_allclose(answer.result(60).prediction, served.ensemble.predict(x), atol=1e-6, rtol=0)

    def test_options(self, served):
        x = networks.inputs(9)
        answer = served.submit(x, Options(members=True, uncertainty=True)).result(60)
        expected = served.ensemble.uncertainty(x)
        np.testing.assert_allclose(answer.uncertainty.epistemic, expected.epistemic, atol=1e-6)
        assert answer.used == (10, 11, 12)
        assert not answer.degraded
        mixed = sum(w * answer.members[t] for w, t in zip(served.ensemble.weights, answer.used, strict=True))
        np.testing.assert_allclose(mixed, answer.prediction, atol=1e-12)

    def test_bad_rows_are_their_own_request_s(self, served):
        """A row that is not a number is refused, and its neighbours in the segment are answered."""
        good, bad = networks.inputs(3), networks.inputs(3, seed=1)
        bad[1, 2] = np.nan
        answers = [served.submit(one) for one in (good, bad, good)]
        with pytest.raises(RequestError, match="row 1 of trial 10 is not finite"):
            answers[1].result(60)
        for answer in (answers[0], answers[2]):
            np.testing.assert_allclose(answer.result(60).prediction, served.ensemble.predict(good), atol=1e-6)

    @pytest.mark.parametrize(
        ("x", "options", "sentence"),
        [
            (np.zeros((3, 4)), {}, r"x: got shape \(3, 4\); allowed: \[N, 5\] with N >= 1"),
            (np.zeros((0, 5)), {}, r"x: got shape \(0, 5\)"),
            (np.zeros((1, 5), complex), {}, "x: got dtype complex128; allowed: float32"),
            (np.zeros((1, 5)), {"deadline_ms": -1}, "deadline_ms: got -1; allowed: a number > 0"),
        ],
    )
    def test_refusals(self, served, x, options, sentence):
        with pytest.raises(RequestError, match=sentence):
            served.submit(x, Options(**options))

    def test_state(self, served):
        served.predict(networks.inputs(3))
        state = served.state()
        assert state["ready"]
        assert [one["alive"] for one in state["members"]] == [True] * 3
        assert state["instances"][0]["state"] == "ready"
        assert state["duplicates"] == state["stale"] == 0


class TestLife:
    def test_before_and_after(self, tmp_path):
        """It answers only while it runs; a deployment that never ran can be drained."""
        ensemble = networks.ensemble(tmp_path, [{}])
        service = Deployment(ensemble, plan_of(ensemble))
        assert not service.ready()
        with pytest.raises(NotReady, match="has not started"):
            service.submit(networks.inputs(1))
        service.drain(1.0)
        service.drain(1.0)
        with pytest.raises(NotReady, match="is draining"):
            service.submit(networks.inputs(1))

    def test_shape_of_inputs(self, tmp_path):
        """Members that left no sample batch need one here."""
        ensemble = networks.ensemble(tmp_path, [{}], sample=False)
        with pytest.raises(ServeConfigError, match="do not remember the shape of their input; give sample="):
            Deployment(ensemble, plan_of(ensemble))
        found = Deployment(ensemble, plan_of(ensemble), sample=networks.inputs(2))
        assert found.input_shape == (networks.INPUTS,)


def test_nobody_is_left_waiting_at_the_end(tmp_path):
    """Requests that come while it ends are refused, or their futures end; none waits for ever."""
    ensemble = networks.ensemble(tmp_path, [{"hidden": 4}])
    service = Deployment(ensemble, plan_of(ensemble)).start()
    futures, x = [], networks.inputs(3)

    def ask():
        while True:
            try:
                futures.append(service.submit(x))
            except NotReady:
                return

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    while len(futures) < 200:
        time.sleep(0.001)
    service.drain(0.0)
    for asker in askers:
        asker.join(30)
    ends = [future.exception(30) for future in futures]
    assert {type(end) for end in ends} <= {type(None), NotReady}
