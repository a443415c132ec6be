"""`trainwright figure`: what lies in the files that it writes."""

import re
import zlib

import pytest

import trainwright as tw
from trainwright.cli.figure import figure
from trainwright.errors import InputError

pytest.importorskip("matplotlib")

NAMES = [
    "progress",
    "curves",
    "importance",
    "parallel",
    "workers",
    "slice",
    "contour",
    "scatter",
    "edf",
    "comparison",
    "best-time-0",
]


def train(trial):
    for epoch in trial.epochs():
        wrong = abs(trial.params["lr"] - 0.01) * 10 + 0.1 * (trial.params["kind"] == "a")
        trial.report(loss=wrong + 1 / epoch)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "study"
    space = tw.Space(lr=tw.Float(1e-4, 1e-1, log=True), kind=tw.Choice("a", "b & $c"))
    with tw.Study(space, "min loss", directory=folder, seed=0) as made:
        searcher, engine = tw.RandomSearcher(), tw.Local(workers=0)
        made.run(train, trials=30, searcher=searcher, scheduler=tw.ASHA(max_epochs=9), engine=engine, progress=False)
    return folder


def page_of(path):
    """Return the width of a PDF's page in mm, its sizes of text in points, and whether fonts are in it."""
    content = path.read_bytes()
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", content)
    sizes = set()
    for stream in re.finditer(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
        try:
            text = zlib.decompress(stream[1])
        except zlib.error:
            continue
        sizes |= {float(size) for size in re.findall(rb"/F\d+ ([\d.]+) Tf", text)}
    return float(box[1]) * 25.4 / 72, sizes, b"/FontFile2" in content or b"/FontFile3" in content


@pytest.mark.parametrize("name", NAMES)
def test_a_pdf_fits_a_column(study, tmp_path, name):
    """85 mm wide, no text below 7 points, fonts embedded."""
    path = tmp_path / "x.pdf"
    of = "seconds,loss" if name == "scatter" else None
    content = figure(study, name, out=path, of=of).content
    width, sizes, embedded = page_of(path)
    assert width == pytest.approx(85, abs=0.1)
    assert sizes
    assert min(sizes) >= 7
    assert embedded
    assert content["title"]


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_other_kinds_of_files(study, tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    figure(study, "curves", out=path, width="50mm")
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    before = path.read_bytes()
    figure(study, "curves", out=path, width="50mm")
    assert path.read_bytes() == before


def test_legend_entries_have_the_marks_of_their_traces(study):
    """No two entries of a legend look alike, and each is what its trace is drawn with."""
    from matplotlib.figure import Figure as Canvas

    from trainwright.report import paper
    from trainwright.report.figures.groups import GROUPS, FigureSource
    from trainwright.report.overview import Overview
    from trainwright.report.tabular import read_state

    source = FigureSource(overview=Overview(read_state(study)), directory=study)
    for group in GROUPS.values():
        for drawn in group.draw(source).figures:
            canvas = Canvas()
            paper._draw(canvas, drawn, paper._read_colours())
            for legend in canvas.legends:
                looks = [
                    (h.get_marker(), h.get_linestyle(), h.get_color(), h.get_markerfacecolor(), h.get_linewidth())
                    for h in legend.legend_handles
                    if hasattr(h, "get_marker")
                ]
                assert len(set(looks)) == len(looks), drawn.name
            shown = {t["name"] for t in drawn.data if t.get("showlegend", True) and t["name"]}
            assert {text.get_text() for each in canvas.legends for text in each.get_texts()} == shown


def test_studies_are_compared(study, tmp_path):
    assert figure(study, "edf", out=tmp_path / "x.svg", compare=[study]).content["width_mm"] == 85


def test_bad_input_is_one_sentence(study, tmp_path):
    for changes, said in [
        ({"name": "curve"}, "'curve' is unknown; allowed: front, progress, curves.*did you mean 'curves'"),
        ({"name": "front"}, "has no figure 'front'"),
        ({"width": "3km"}, "got '3km'; allowed: 40mm to 400mm"),
        ({"name": "slice", "of": "rate"}, "nothing is named 'rate'; there are: lr, kind, loss, epochs, seconds"),
        ({"name": "scatter", "of": "lr"}, "--of of a scatter is two names"),
        ({"name": "contour", "of": "lr,loss"}, "nothing is named 'loss'; there are: lr, kind"),
        ({"name": "contour", "of": "lr"}, "--of names 1 parameters; allowed: 2"),
        ({"out": tmp_path / "x.gif"}, "its name must end in .pdf or .svg or .png, got '.gif'"),
    ]:
        options = {"name": "curves", "out": tmp_path / "x.pdf", **changes}
        with pytest.raises(InputError, match=said):
            figure(study, **options)
