"""The page over a study in Redis: what is appended there is shown, what needs a folder is left out."""

import pytest

from servers import Server, needs_redis
from trainwright.errors import StudyError
from trainwright.http_security import Guard
from trainwright.ledger import RedisLedger, Writer, facts
from trainwright.ui.study_follower import StudyRegistry

needs_redis()
httpx = pytest.importorskip("httpx", reason="needs httpx")
pytest.importorskip("fastapi", reason="needs the extra ui")

from trainwright.ui.app import application  # noqa: E402 -- after the check

pytestmark = [pytest.mark.slow, pytest.mark.outside("Redis")]


@pytest.fixture
def server(tmp_path):
    started = Server(tmp_path / "redis")
    yield started
    started.kill()


@pytest.fixture
def scribe(Scribe, server):
    """Return what writes a study of three trials to the server."""
    written = Scribe.__new__(Scribe)
    written.ledger = RedisLedger(server.url("digits"), create=True)
    versions = {"trainwright": "0.1.0"}
    space = Scribe.SPACE.to_json()
    created = facts.created(space=space, objectives=["min val_loss"], seed=3, versions=versions)
    written.say(created, facts.joined(Writer.here(), session=1))
    for number in range(3):
        written.trial(number)
    yield written
    written.ledger.close()


def asked(app, path):
    import asyncio

    async def once():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
            return (await client.get(path)).json()

    return asyncio.run(once())


def test_a_study_in_redis(server, scribe, until):
    """Rows and figures are those of the stream; a trial that comes later is seen; plans and logs are empty."""
    registry = StudyRegistry(server.url("digits"))
    try:
        app = Guard(application(registry), host="127.0.0.1", token=None)
        [study] = until(lambda: [each for each in asked(app, "/api/studies")["studies"] if each["loaded"]])
        assert (study["name"], study["trials"], study["results"]) == ("digits", 3, 3)
        base = f"/api/studies/{study['id']}"
        assert [row["trial"] for row in asked(app, f"{base}/trials?sort=rank")["rows"]] == [0, 1, 2]
        assert [each["name"] for each in asked(app, f"{base}/views/curves")["figures"]]
        assert asked(app, f"{base}/views/plans")["figures"] == []
        assert asked(app, f"{base}/trials/0/log")["text"] == ""
        scribe.trial(3)
        until(lambda: asked(app, base)["counts"] == {"complete": 4})
    finally:
        registry.close()


def test_what_is_no_study_there(server):
    with pytest.raises(StudyError, match="no study"):
        StudyRegistry(server.url("nothing"))
