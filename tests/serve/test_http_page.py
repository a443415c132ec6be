"""The page to try an ensemble, in a real browser: it asks, shows, says what is wrong, loads nothing from elsewhere."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, Scripted, ensemble

from trainwright.errors import Overloaded
from trainwright.serve import Server


@pytest.fixture(scope="module", params=["classes", "moments"])
def served(request, tmp_path_factory):
    params = [{"lr": 0.1}, {"hidden": 4, "lr": 0.3}]
    found = ensemble(tmp_path_factory.mktemp("served"), params, kind=request.param, weights=[0.4, 0.6])
    with Scripted(found) as service, Server(service, port=0, name="digits") as server:
        yield service, server


@pytest.fixture
def page(served, open_page):
    page = open_page(served[1].url, width=400, height=800, refusals=True)
    page.get_by_text("ready", exact=True).wait_for()
    return page


@pytest.mark.slow
def test_predicts(page, served):
    """The rows that stand there are answered; the bars are the ensemble's numbers; members come if asked for."""
    rows = [[0.5, -1.0, 0.25, 2.0, 0.0]]
    page.locator("#rows").fill(str(rows))
    page.get_by_label("each member").check()
    page.get_by_role("button", name="Predict").click()
    page.get_by_text("Row 1").wait_for()
    expected = served[0].ensemble.predict(np.array(rows, dtype=np.float32))[0]
    text = page.locator("#answer").inner_text()
    shown = expected if served[0].ensemble.output == "classes" else [expected[0, 0], np.sqrt(expected[0, 1])]
    for value in shown:
        assert f"{float(f'{value:.4g}'):g}" in text
    assert "epistemic" in text
    assert "trial 10:" in text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_says_what_is_wrong(page, served, monkeypatch):
    ask, error = page.get_by_role("button", name="Predict"), page.get_by_role("alert")
    for text, sentence in (
        ("[[1, 2]]", "inputs[0].shape: got [1, 2]"),
        ("[1,", "rows: "),
        ("[]", "allowed: a JSON list"),
    ):
        page.locator("#rows").fill(text)
        ask.click()
        page.get_by_role("alert").filter(has_text=sentence).wait_for()
    page.get_by_role("button", name="Random rows").click()
    monkeypatch.setattr(served[0], "script", lambda x, options: Overloaded("queue: full", 1.0))
    ask.click()
    error.filter(has_text="queue: full").wait_for()
    monkeypatch.setattr(served[0], "script", lambda x, options: None)
    ask.click()
    error.wait_for(state="hidden")
    page.get_by_text("Row 2").wait_for()


def test_nothing_from_elsewhere(served):
    """The page names no other place, and its policy lets it speak to its own server alone."""
    reply = HTTP.get(served[1].url)
    assert "<h1>digits</h1>" in reply.text
    assert "http" not in reply.text.replace("http-equiv", "")
    policy = reply.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
