"""What everything that listens promises: where it binds, who may ask, by which name, and how much may be sent."""

import asyncio
import socket

import pytest

from trainwright.errors import InputError, ListenError
from trainwright.http_security import Guard, bind, is_loopback, token_for

TOKEN = "a-token-of-twenty-letters"  # noqa: S105 -- of these tests


async def echo(scope, receive, send):
    """Answer with the whole body, as an application does that has no limits of its own."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


class Answer:
    def __init__(self, sent):
        self.status = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in sent[1:])


def ask(guard, path="/", *, query="", method="GET", chunks=(b"",), port=8080, **headers):
    """Return the answer to one request; underscores in the names of headers stand for dashes."""
    fields = {"host": f"localhost:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in fields.items() if value is not None],
        "server": ("127.0.0.1", port),
    }
    sent = []
    left = list(chunks)

    async def receive():
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return Answer(sent)


@pytest.fixture
def open_guard():
    return Guard(echo, host="127.0.0.1", token=None)


@pytest.fixture
def token_guard():
    return Guard(echo, host="0.0.0.0", token=TOKEN)  # noqa: S104 -- it is what is tested


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", ""])  # noqa: S104
def test_not_loopback(host):
    assert not is_loopback(host)


class TestToken:
    def test_loopback_needs_none_and_anything_else_gets_a_new_one(self):
        assert token_for("127.0.0.1") is None
        first, second = token_for("0.0.0.0"), token_for("0.0.0.0")  # noqa: S104
        assert first != second
        assert len(first) >= 40

    def test_a_file_gives_it_even_on_loopback(self, tmp_path):
        path = tmp_path / "token"
        path.write_text(f"{TOKEN}\n")
        path.chmod(0o600)
        assert token_for("127.0.0.1", path) == TOKEN

    def test_a_file_that_others_may_read_is_refused(self, tmp_path):
        path = tmp_path / "token"
        path.write_text(TOKEN)
        path.chmod(0o644)
        with pytest.raises(InputError, match=r"others may read .*chmod 600"):
            token_for("0.0.0.0", path)  # noqa: S104

    @pytest.mark.parametrize("text", ["", "short", "two words that are long enough", "x" * 300, "é" * 20])
    def test_a_file_without_a_token_is_refused_without_telling_its_content(self, tmp_path, text):
        path = tmp_path / "token"
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(InputError, match="holds no token; allowed: 16 to 256") as refused:
            token_for("0.0.0.0", path)  # noqa: S104
        assert not text or text not in str(refused.value)

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"cannot read .*nowhere: no such file"):
            token_for("0.0.0.0", tmp_path / "nowhere")  # noqa: S104


class TestHost:
    @pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "localhost."])
    def test_loopback_names_are_known(self, open_guard, host):
        assert ask(open_guard, host=host).status == 200

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "localhost.evil.example", "10.0.0.1:8080", "", "localhost:8080@evil.example", "127.0.0.1:x"],
    )
    def test_other_names_are_refused(self, open_guard, host):
        """DNS rebinding: a foreign name that was made to point at this machine comes with that name."""
        answer = ask(open_guard, host=host)
        assert (answer.status, answer.body) == (400, b"this host name is not one of this server's\n")

    def test_no_host_is_refused(self, open_guard):
        assert ask(open_guard, host=None).status == 400

    def test_beyond_loopback_addresses_and_its_own_name_are_known(self, token_guard):
        bearer = f"Bearer {TOKEN}"
        for host in ("10.0.0.1:80", "[fe80::1]:80", socket.gethostname()):
            assert ask(token_guard, host=host, authorization=bearer).status == 200
        assert ask(token_guard, host="evil.example", authorization=bearer).status == 400

    def test_further_names_can_be_given(self):
        guard = Guard(echo, host="127.0.0.1", token=None, names=["login.cluster.example"])
        assert ask(guard, host="login.cluster.example:8080").status == 200

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9090"])
    def test_a_page_of_another_origin_is_refused(self, open_guard, origin):
        assert ask(open_guard, method="POST", origin=origin).status == 403

    def test_its_own_origin_is_not(self, open_guard):
        assert ask(open_guard, origin="http://localhost:8080").status == 200


class TestAccess:
    def test_without_a_token_nothing_is_told(self, token_guard):
        answer = ask(token_guard, "/secret")
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert b"secret" not in answer.body

    @pytest.mark.parametrize("given", [f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}"])
    def test_wrong_tokens_are_refused(self, token_guard, given):
        assert ask(token_guard, authorization=given).status == 401

    def test_a_bearer_token_is_enough(self, token_guard):
        assert ask(token_guard, "/a", authorization=f"Bearer {TOKEN}").body == b"/a "

    def test_the_address_gives_a_cookie_once_and_leads_on_without_the_token(self, token_guard):
        answer = ask(token_guard, "/a", query=f"x=1&token={TOKEN}&y=2")
        assert answer.status == 303
        assert answer.headers["location"] == "/a?x=1&y=2"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        pair = cookie.partition(";")[0]
        assert ask(token_guard, cookie=f"other=1; {pair}").status == 200
        assert ask(token_guard, cookie=f"{pair}0").status == 401
        assert ask(token_guard, cookie=pair, port=9999).status == 401  # a cookie of another port's server

    def test_a_wrong_token_in_the_address_is_refused(self, token_guard):
        assert ask(token_guard, query="token=wrong").status == 401

    def test_the_redirection_stays_here(self, token_guard):
        """A path that begins with two slashes would be another host to a browser."""
        assert ask(token_guard, "//evil.example/x", query=f"token={TOKEN}").headers["location"] == "/evil.example/x"

    def test_a_token_in_the_address_of_a_post_counts_not(self, token_guard):
        assert ask(token_guard, query=f"token={TOKEN}", method="POST").status == 401

    def test_an_unreadable_cookie_is_none(self, token_guard):
        assert ask(token_guard, cookie='trainwright-8080="').status == 401


class TestAnswers:
    def test_every_answer_has_the_headers(self, open_guard, token_guard):
        for answer in (ask(open_guard), ask(token_guard), ask(open_guard, host="evil.example")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "default-src 'none'" in answer.headers["content-security-policy"]

    def test_a_policy_of_ones_own_takes_the_place_of_the_strictest(self):
        guard = Guard(echo, host="localhost", token=None, headers={"content-security-policy": "default-src 'self'"})
        assert ask(guard).headers["content-security-policy"] == "default-src 'self'"

    def test_bodies_that_say_their_length_have_a_limit(self):
        guard = Guard(echo, host="localhost", token=None, max_body_bytes=10)
        assert ask(guard, method="POST", chunks=[b"12345", b"67890"]).body == b"/ 1234567890"
        assert ask(guard, method="POST", content_length="11").status == 413
        assert ask(guard, method="POST", content_length="-1").status == 413

    def test_websockets_are_closed(self, open_guard):
        sent = []

        async def send(message):
            sent.append(message)

        asyncio.run(open_guard({"type": "websocket", "headers": []}, None, send))
        assert [message["type"] for message in sent] == ["websocket.close"]


class TestBind:
    def test_a_free_port_is_found(self):
        with bind("127.0.0.1", 0) as listener:
            assert listener.getsockname()[1] > 0

    def test_a_port_in_use_is_told(self):
        with bind("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(ListenError, match=rf"cannot listen on 127.0.0.1:{port}: address already in use; give"):
                bind("127.0.0.1", port)

    @pytest.mark.parametrize(("host", "port"), [("127.0.0.1", -1), ("127.0.0.1", 65536), ("no host", 0)])
    def test_bad_addresses_are_refused(self, host, port):
        with pytest.raises(InputError, match=r"--(port|host): got .*; allowed: "):
            bind(host, port)


def test_answers_of_interfaces():
    """What only says whether the server lives needs no token."""
    guard = Guard(echo, host="0.0.0.0", token=TOKEN, max_body_bytes=4, open_paths=["/live"])  # noqa: S104
    assert ask(guard, "/").status == 401
    assert ask(guard, "/live").status == 200
    assert ask(guard, "/live/").status == 401
    large = ask(guard, method="POST", content_length="6", authorization=f"Bearer {TOKEN}")
    assert (large.status, large.body) == (413, b"body: is too large; allowed: up to 4 bytes\n")
