"""The report as a page: one file without a network, safe against what a study's texts hold, whole in every state."""

import base64
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser

import pytest

from trainwright.errors import InputError, StudyError
from trainwright.ledger import DirectoryLedger, facts
from trainwright.report import write_report
from trainwright.space import Choice, Float, Space

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028'\""


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, the texts of scripts, and the text shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.shown = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.shown += data

    @property
    def figures(self) -> dict[str, dict]:
        return {figure["name"]: figure for figure in json.loads(self.scripts[0])}

    @property
    def sections(self) -> list[str]:
        return [attrs["id"] for tag, attrs in self.elements if tag == "section"]


def report(directory) -> Page:
    return Page(write_report(directory).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(asha) -> Page:
    return report(asha)


def test_it_stands_where_asked_and_leaves_nothing_else(asha, tmp_path):
    """By default it is report.html in the study; a second one takes the place of the first."""
    assert write_report(asha) == asha / "report.html"
    assert write_report(str(asha), tmp_path / "a.html") == write_report(asha, tmp_path / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_every_section_of_a_real_study_is_there(page):
    wanted = ["best", "progress", "curves", "importance", "parallel", "workers", "failures"]
    assert page.sections == wanted
    places = {attrs["id"].removeprefix("plot-") for _, attrs in page.elements if attrs.get("class") == "plot"}
    assert places == set(page.figures)
    assert "min val_loss" in page.shown
    assert "54 stopped" in page.shown


def test_nothing_is_fetched(page):
    """No element refers to anything but the page itself, and the policy forbids the rest."""
    for tag, attrs in page.elements:
        assert tag not in {"link", "iframe", "img", "object", "base"}
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_the_policy_allows_just_the_own_script(page):
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert len(digests) == 1
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {allowed};" in policy


def test_captions_say_in_words_what_is_seen(page):
    assert re.search(r"Dashed lines are rungs, .* 54 trials were stopped", page.shown)
    assert re.search(r"Half of them predict \d+% of the variance of the others", page.shown)
    assert re.search(r"The dotted line is a break in which nothing ran, 1 h \d+ min in all", page.shown)
    assert re.search(r"The most important is lr \(\d+%\)", page.shown)


def test_texts_of_a_study_cannot_become_code(scribe):
    """Names, values, messages and objectives with tags in them are shown as they are, everywhere."""
    space = Space.of({NASTY: Choice(NASTY, "plain"), "x": Float(0.0, 1.0)})
    metric = "loss&lt;b&gt;\"'"  # the signs < and > are the objectives' own
    scribe.create(objectives=[f"min {metric}"], space=space)
    for number in range(30):
        scribe.propose(number, {NASTY: NASTY if number % 2 else "plain", "x": number / 30}, space)
        scribe.say(facts.started(number, 1, slot=NASTY, devices=["cpu"], resumed_epoch=0))
        scribe.at += 1
        if number == 7:
            failed = facts.failed(7, 1, failure="exception", message=NASTY, traceback=NASTY, wall_seconds=1.0)
            scribe.say(failed)
            continue
        for epoch in (1, 2):
            metrics = {metric: number / (10 + epoch)}
            scribe.say(facts.reported(number, 1, epoch=epoch, step=None, metrics=metrics, wall_seconds=epoch / 2))
        scribe.say(facts.finished(number, 1, reason="completed", values=metrics, wall_seconds=1.0))
    page = report(scribe.write())
    assert len(page.scripts) == 2
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [attrs for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert page.shown.count("<img src=x onerror=alert(2)>") >= 2  # the failure's sentence and its traceback
    assert metric in page.shown
    for figure in page.figures.values():  # whose texts are HTML
        assert "<img" not in json.dumps(figure)
        assert "<script" not in json.dumps(figure)


def test_an_empty_study(scribe):
    page = report(scribe.create().write())
    assert page.sections == ["best"]
    assert "There is no trial yet" in page.shown


def test_a_study_without_any_record(tmp_path):
    DirectoryLedger(tmp_path / "ledger", create=True).close()
    assert report(tmp_path).sections == ["best"]


def test_trials_that_have_only_been_proposed(scribe):
    scribe.create()
    scribe.propose(0)
    assert "1 trial is not finished" in report(scribe.write()).shown


def test_a_single_trial(scribe):
    scribe.create()
    scribe.propose(0)
    scribe.say(facts.started(0, 1, slot="0", devices=["cpu"], resumed_epoch=0))
    scribe.say(facts.finished(0, 1, reason="completed", values={"val_loss": 0.5}, wall_seconds=2.0), at=scribe.at + 2)
    page = report(scribe.write())
    assert page.sections == ["best", "progress", "importance", "workers"]
    assert "at least 12 results are needed; so far: 1" in page.shown


def test_only_failures(scribe):
    """Equal failures are told once, with the trials that had them."""
    scribe.create()
    for number in range(30):
        scribe.propose(number)
        scribe.say(facts.started(number, 1, slot="0", devices=["cpu"], resumed_epoch=0))
        scribe.say(facts.failed(number, 1, failure="out_of_memory", message="out of memory", traceback="line 1"))
    page = report(scribe.write())
    assert [tag for tag, _ in page.elements].count("details") == 1
    assert "(trials 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 18 more)" in page.shown
    assert "No result yet" in page.shown


def test_several_objectives(scribe):
    scribe.create(objectives=["min val_loss", "max accuracy >= 0.5", "min seconds"])
    for number in range(20):
        scribe.propose(number)
        values = {"val_loss": number / 20, "accuracy": 1 - abs(number - 5) / 20, "seconds": 1 / (number + 1)}
        scribe.say(facts.finished(number, 1, reason="completed", values=values, wall_seconds=1.0))
    page = report(scribe.write())
    assert {"front-1", "front-2", "best-results-2"} <= set(page.figures)
    assert "20 results do not tell yet which parameters move seconds" in page.shown
    assert "the bounds, which 16 results of 20 keep" in page.shown


def test_a_value_that_is_not_finite(scribe):
    """NaN and infinities are no JSON; such a trial has no place among the results."""
    scribe.create()
    for number, value in enumerate([0.5, float("nan"), float("inf"), 0.25]):
        scribe.propose(number)
        for epoch, loss in ((1, value), (2, value)):
            scribe.say(facts.reported(number, 1, epoch=epoch, step=None, metrics={"val_loss": loss}, wall_seconds=1.0))
        scribe.say(facts.finished(number, 1, reason="completed", values={"val_loss": value}, wall_seconds=1.0))
    page = report(scribe.write())
    assert "2 results, the best first" in page.shown
    assert None in page.figures["curves-0"]["data"][0]["y"]


def test_what_was_dropped_of_the_records_is_named(scribe):
    directory = scribe.create().write()
    journal = next((directory / "ledger" / "journal").iterdir())
    journal.write_bytes(journal.read_bytes()[:-5])
    page = report(directory)
    assert "1 piece of the records could not be read" in page.shown
    assert f"{journal.name}: " in page.shown
    assert "its end is missing" in page.shown


def test_the_way_on_is_the_one_that_was_noted(scribe):
    scribe.create().say(facts.note("resume", "trainwright run digits.toml <fast>"))
    assert "To go on: trainwright run digits.toml <fast>." in report(scribe.write()).shown


def test_a_requirement_of_a_module_that_is_not_here(scribe):
    """A report can be made on another machine than the study's."""
    scribe.create()
    scribe.propose(0)
    body = dict(scribe.records[1].body["space"])
    body["requirements"] = [{"function": "no_such_module:fits", "names": ["lr"]}]
    scribe.records[1].body["space"] = body
    assert report(scribe.write()).sections[0] == "best"


def test_refusals_are_one_sentence(asha, tmp_path):
    with pytest.raises(InputError, match=r"its name must end in \.html or \.htm, got '\.pdf'"):
        write_report(asha, tmp_path / "a.pdf")
    with pytest.raises(InputError, match=r"the directory .* does not exist; make it first"):
        write_report(asha, tmp_path / "no" / "a.html")
    with pytest.raises(InputError, match="lies in the study's own records"):
        write_report(asha, asha / "ledger" / "a.html")
    (tmp_path / "b.html").mkdir()
    with pytest.raises(InputError, match="it is a directory"):
        write_report(asha, tmp_path / "b.html")
    with pytest.raises(StudyError, match="no study in"):
        write_report(tmp_path)


def test_a_browser_draws_it(asha, chromium, tmp_path):
    """All figures are drawn under the page's own policy."""
    path = write_report(asha, tmp_path / "report.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    done = subprocess.run([chromium, *flags, path.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    dom = Page(done.stdout)
    assert any("data-drawn" in attrs for tag, attrs in dom.elements if tag == "html"), done.stderr[-2000:]
    assert [tag for tag, _ in dom.elements].count("canvas") == len(dom.figures)
    assert dom.shown.count("Save as SVG") == len(dom.figures)
