"""The page's view of a server's load, beside a server that serves: worker processes behind HTTP, and a token."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from http_for_tests import ask, ensemble, inputs

from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Server
from trainwright.ui.server_load import ServerLoad

TOKEN = "a-token-of-twenty-letters"  # noqa: S105 -- of this test
REQUESTS, ROWS = 6, 8


@pytest.mark.slow
def test_its_requests_and_rows_are_seen(tmp_path):
    """What was asked between two looks is counted, with its rows and time; a request that is refused apart."""
    found = ensemble(tmp_path, [{}, {"hidden": 4}], kind="classes", weights=[0.4, 0.6])
    x = inputs(ROWS, seed=1)
    with (
        Deployment(found, DeploymentPlan.simple(found, "cpu"), settings=DeploymentSettings()) as service,
        Server(service, port=0, token=TOKEN) as server,
    ):
        load = ServerLoad(server.url, token=TOKEN)
        before = load.content()
        for _ in range(REQUESTS):
            assert ask(server.url, x, token=TOKEN).status_code == 200
        assert ask(server.url, x[:, :2], token=TOKEN).status_code == 400
        told = load.content()
        stranger = ServerLoad(server.url).content()
    assert told["error"] is None
    assert (told["name"], told["ready"], len(told["members"])) == ("ensemble", True, 2)
    assert told["requests"] == {"200": REQUESTS, "400": 1}
    assert told["rows"] == REQUESTS * ROWS
    assert told["answers"] - before["answers"] == REQUESTS
    assert told["answer_seconds"] > before["answer_seconds"]
    assert told["waiting"] == 0
    assert "does not answer" in stranger["error"]  # without the token
    assert "does not answer" in load.content()["error"]  # when it has ended
