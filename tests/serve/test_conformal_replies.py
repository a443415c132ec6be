"""Conformal sets and intervals in replies: the numbers of `Ensemble` in Python, by whatever client and runtime."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, INFER, body, ensemble, inputs

from trainwright.ensemble.combine.calibration import Calibration
from trainwright.ensemble.combine.conformal import Conformal
from trainwright.ensemble.combine.rules import combine
from trainwright.errors import RequestError
from trainwright.serve import Client, Deployment, DeploymentPlan, Options, Server

X = inputs(40)
HELD = inputs(60, seed=1)  # that thresholds rest on: asked themselves, they would lie on them
PARAMS = [{}, {"hidden": 4}]


def promising(place, kind, **settings):
    """Return a calibrated ensemble whose sets or intervals rest on drawn targets, and the name of their output."""
    found = ensemble(place, PARAMS, kind=kind, weights=[0.7, 0.3])
    pooled = combine(found.rule, found._member_outputs(HELD, 512, "cpu"), found.weights)
    draws = np.random.default_rng(0)
    classes = draws.integers(0, pooled.shape[1], len(HELD))
    targets = classes if kind == "classes" else draws.normal(size=pooled.shape[:2])
    # A calibration of its own, which sets and intervals must not see: they were fitted before it.
    kinds = {"classes": "temperature", "moments": "variance"}
    calibration = kind in kinds and Calibration(
        kind=kinds[kind], fitted=2.0, applied=2.0, gain=0.1, standard_error=0.01, rows=60
    )
    conformity = Conformal.fit(pooled, targets, output=found.output, alpha=0.2, **settings)
    return replace(found, conformity=conformity, calibration=calibration or None)


def expected_of(found, x):
    return found.predict_set(x) if found.output == "classes" else found.predict_interval(x)


CASES = {
    "classes": ("classes", {}),
    "by class": ("classes", {"by": "class"}),
    "scaled": ("moments", {}),
    "quantile": ("moments", {"method": "quantile"}),
    "values": ("values", {}),
}


@pytest.mark.parametrize(
    ("case", "in_process"),
    [
        *((case, True) for case in CASES),
        # Sets and intervals are computed above the workers, by the same code whatever is in them.
        *(pytest.param(case, False, marks=[] if case in {"classes", "scaled"} else pytest.mark.slow) for case in CASES),
    ],
)
def test_equal_to_python(tmp_path, case, in_process):
    """In Python, by our client in JSON and binary, and by the protocol's own client."""
    kind, settings = CASES[case]
    found = promising(tmp_path, kind, **settings)
    expected, name = expected_of(found, X), "prediction_set" if kind == "classes" else "prediction_interval"
    plan = DeploymentPlan.simple(found, "cpu", in_process=in_process)
    with Deployment(found, plan) as service, Server(service, port=0) as server:
        answer = service.submit(X, Options(conformal=True)).result(60)
        np.testing.assert_allclose(answer.conformal, expected, atol=1e-6)
        np.testing.assert_allclose(answer.prediction, found.predict(X), atol=1e-6)
        assert service.submit(X).result(60).conformal is None
        for binary in (True, False):
            with Client(server.url, binary=binary) as client:
                asked = client.ask(X, Options(conformal=True, uncertainty=True))
                assert asked.conformal.dtype == expected.dtype
                np.testing.assert_allclose(asked.conformal, expected, atol=1e-6)
                assert client.ask(X).conformal is None
        triton = pytest.importorskip("tritonclient.http")
        with triton.InferenceServerClient(server.url.removeprefix("http://")) as reference:
            tensor = triton.InferInput("input", list(X.shape), "FP32")
            tensor.set_data_from_numpy(X)
            [described] = [one for one in reference.get_model_metadata("ensemble")["outputs"] if one["name"] == name]
            assert described["datatype"] == ("BOOL" if kind == "classes" else "FP64")
            for binary in (True, False):
                wanted = [triton.InferRequestedOutput(one, binary_data=binary) for one in (name, "prediction")]
                reply = reference.infer("ensemble", [tensor], outputs=wanted)
                np.testing.assert_allclose(reply.as_numpy(name), expected, atol=1e-6)
                np.testing.assert_allclose(reply.as_numpy("prediction"), found.predict(X), atol=1e-6)


@pytest.mark.parametrize("by", [None, "group"])
def test_without_a_promise(tmp_path, by):
    """An ensemble without calibration rows, or by groups that a request does not tell, refuses: the service goes on."""
    found = ensemble(tmp_path, PARAMS)
    if by is not None:
        found = promising(tmp_path / "other", "classes", by="group", groups=np.arange(len(HELD)) % 2)
    plan = DeploymentPlan.simple(found, "cpu", in_process=True)
    with Deployment(found, plan) as service, Server(service, port=0) as server:
        with pytest.raises(RequestError, match="conformal: got True, but this ensemble promises no sets"):
            service.submit(X, Options(conformal=True))
        for changes, sentence in (
            ({"parameters": {"return_conformal": True}}, "this ensemble promises no sets or intervals"),
            ({"outputs": [{"name": "prediction_set"}]}, "outputs[0].name: got 'prediction_set'"),
        ):
            reply = HTTP.post(server.url + INFER, json=body(X, **changes))
            assert reply.status_code == 400
            assert sentence in reply.json()["error"]
        assert HTTP.post(server.url + INFER, json=body(X)).status_code == 200
