"""The same ensemble by the same plan on Ray Serve: the same answers, refusals, and an end."""

import numpy as np
import pytest

pytest.importorskip("torch")

from served_networks import ensemble, inputs

from trainwright.errors import NotReady, Overloaded, RequestError
from trainwright.integrations.ray_serve import RayService
from trainwright.serve import Client, DeploymentPlan, DeploymentSettings, Options, Server
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import parse_devices
from trainwright.serve.placement.units import Unit

pytestmark = [pytest.mark.slow, pytest.mark.outside("Ray"), pytest.mark.filterwarnings("default")]  # Ray's own
X = inputs(50)


@pytest.fixture(scope="module")
def ray_here():
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    from ray import serve

    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def service(ray_here, tmp_path_factory):
    """Return a service of three members in two units, one of them twice."""
    found = ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}, {"hidden": 6}], weights=[0.2, 0.3, 0.5])
    units = (Unit(members=(0, 1)), Unit(members=(2,)))
    plan = DeploymentPlan(
        ensemble=digest_of(found), devices=parse_devices("cpu:0,cpu:1"), units=units, matrix=((8, 8), (0, 8))
    )
    with RayService(found, plan, settings=DeploymentSettings(queue_rows=60)) as service:
        yield service


def test_answers(service):
    """Answers of all sizes are those of the ensemble, over HTTP too."""
    whole = service.ensemble
    for rows in (1, 8, 50):
        answer = service.submit(X[:rows], Options(uncertainty=True, members=True)).result(120)
        np.testing.assert_allclose(answer.prediction, whole.predict(X[:rows]), atol=1e-6)
        np.testing.assert_allclose(answer.uncertainty.total, whole.uncertainty(X[:rows]).total, atol=1e-6)
        assert (answer.used, answer.degraded, set(answer.members)) == ((10, 11, 12), False, {10, 11, 12})
    with Server(service, port=0) as server, Client(server.url) as client:
        np.testing.assert_allclose(client.predict(X), whole.predict(X), atol=1e-6)
        names = [one["name"] for one in client.ensemble()["state"]["applications"]]
        assert len(names) == 3, "an instance that shares its device asks for a part of it"


def test_refusals(service):
    with pytest.raises(RequestError, match=r"got shape \[2, 3\] of float32, which trial 1\d cannot take"):
        service.submit(X[:2, :3], Options()).result(120)
    with pytest.raises(Overloaded, match="allowed: 60"):
        service.submit(np.concatenate([X, X]), Options())


def test_ended(tmp_path, ray_here):
    service = RayService(ensemble(tmp_path, [{}]), name="another")
    service.drain(10.0)
    service.drain(0.0)
    assert not service.ready()
    with pytest.raises(NotReady):
        service.submit(X, Options())
