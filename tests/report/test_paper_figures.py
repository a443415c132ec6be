"""Figures in a real browser: every legend entry has the mark of its trace, and a saved file is fit for a paper.

For every figure that reports have, in both themes and both widths.
"""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from test_ensembles import library

from trainwright.report import write_report

SVG = "{http://www.w3.org/2000/svg}"
POINT_MM = 25.4 / 72
KNOWN = {
    "best-results-0", "best-time-0", "curves-0", "importance-0", "parallel", "utilisation", "ensembles",
}  # fmt: skip


@pytest.fixture(scope="module")
def gallery(asha, asha_study, tmp_path_factory):
    """Return the report of a study with a library, failures, and a trial that others have let go."""
    folder = tmp_path_factory.mktemp("gallery") / "study"
    shutil.copytree(asha, folder)
    library(folder, range(0, 60, 5))
    return write_report(folder)


@pytest.fixture(scope="module")
def two_goals(tmp_path_factory, asha_study):
    study = asha_study(tmp_path_factory.mktemp("two") / "study", 30)
    for record in study.records:
        if record.kind == "created":
            record.body["objectives"] = ["min val_loss", "max val_accuracy >= 0.2"]
    return write_report(study.write())


def figures_of(page):
    return {figure["name"]: figure for figure in json.loads(page.locator("#figures").text_content())}


def opened(open_page, report, scheme):
    page = open_page(report.as_uri(), width=1100, height=900, color_scheme=scheme)
    page.wait_for_selector("html[data-drawn]", state="attached")
    return page


def saved(page, name, mm):
    """Return the text of the file that the page gives for a figure."""
    figure = page.locator(f"figure:has(#plot-{name})")
    figure.locator("select").select_option(str(mm))
    with page.expect_download() as download:
        figure.locator("button", has_text="Save as SVG").click()
    with open(download.value.path(), encoding="utf-8") as file:  # noqa: PTH123 -- a text or a path
        return file.read()


def legend_of(figure):
    named = [trace for trace in figure["data"] if trace.get("name") and trace.get("showlegend") is not False]
    return named if len(named) > 1 else []


def strokes(mark):
    """Return what a legend's mark is made of."""
    found = Counter(re.findall(r"<(path|rect|circle|polygon)\b", mark))
    found["dashed"] = mark.count("stroke-dasharray")
    return found


def check_mark(trace, mark):
    has, mode = strokes(mark), trace.get("mode", "lines")
    if trace["type"] == "bar":
        assert has["rect"] == 1
        return
    symbol = trace.get("marker", {}).get("symbol", "circle")
    crosses = "markers" in mode and symbol == "x-thin-open"
    lined = "lines" in mode and trace.get("line", {}).get("width", 1) > 0
    assert has["path"] == lined + crosses, trace["name"]
    assert has["circle"] == ("markers" in mode and symbol.startswith("circle")), trace["name"]
    assert has["polygon"] == ("markers" in mode and symbol in {"diamond", "star"}), trace["name"]
    assert bool(has["dashed"]) == (lined and bool(trace["line"].get("dash"))), trace["name"]
    assert bool(has["rect"]) == bool(trace.get("fill")), trace["name"]


@pytest.mark.parametrize("which", ["gallery", "two_goals"])
def test_every_legend_entry_has_the_mark_of_its_trace_and_no_two_look_alike(request, open_page, which):
    page = opened(open_page, request.getfixturevalue(which), "light")
    figures = figures_of(page)
    several = 0
    for name, figure in figures.items():
        traces = legend_of(figure)
        keys = page.locator(f"#plot-{name} .key")
        marks = [keys.nth(at).locator("svg").inner_html() for at in range(len(traces))]
        several += len(marks) > 1
        assert len(set(marks)) == len(marks), f"{name}: two entries look alike"
        for trace, mark in zip(traces, marks, strict=True):
            check_mark(trace, mark)
    assert several >= 3


def check_file(text, figure, mm):
    root = ET.fromstring(text)  # noqa: S314 -- our own
    assert root.get("width") == f"{mm}mm"
    wide = float(root.get("viewBox").split()[2])
    tall = float(root.get("viewBox").split()[3])
    assert float(root.get("height").removesuffix("mm")) == pytest.approx(mm * tall / wide, abs=0.02)
    texts = root.findall(f".//{SVG}text")
    sizes = [float(each.get("font-size")) * mm / wide / POINT_MM for each in texts]
    assert min(sizes) >= 7.0
    shown = " ".join(each.text or "" for each in texts)
    title = re.sub(r"&\w+;|[^\w ]", "", figure["title"])
    assert re.sub(r"[^\w ]", "", shown).startswith(title)
    assert "NaN" not in text
    for trace in legend_of(figure):
        if f"-{trace['name']}" and len(trace["name"]) < 30:
            assert trace["name"].split()[0] in shown


@pytest.mark.parametrize("which", ["gallery", pytest.param("two_goals", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mm", [85, 180])
def test_a_saved_file_is_light_and_legible_whatever_the_page_shows(request, open_page, which, mm):
    report = request.getfixturevalue(which)
    light, dark = (opened(open_page, report, scheme) for scheme in ("light", "dark"))
    for name, figure in figures_of(light).items():
        text = saved(light, name, mm)
        check_file(text, figure, mm)
        assert 'height="100%" fill="#ffffff"' in text
        assert saved(dark, name, mm) == text, f"{name}: the dark page saves another file"


def test_the_gallery_has_every_figure(open_page, gallery, two_goals):
    names = set(figures_of(opened(open_page, gallery, "light")))
    assert names >= KNOWN, sorted(KNOWN - names)
    assert "front-1" in set(figures_of(opened(open_page, two_goals, "light")))
