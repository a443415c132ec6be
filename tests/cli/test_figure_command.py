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
    "best-time",
    "best-time-0",
    "best-results",
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
    from trainwright.report.exports import read_state
    from trainwright.report.figures.groups import GROUPS, FigureSource
    from trainwright.report.overview import Overview

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
            entries = {text.get_text() for each in canvas.legends for text in each.get_texts()}
            assert entries == (shown if len(shown) > 1 else set())


def test_no_text_lies_on_another_however_long_the_names_are(tmp_path, monkeypatch):
    """At 85 mm, with twelve choices, eight parameters and names of 40 letters; and no text is outside of the file."""
    from trainwright.report import paper
    from trainwright.report.exports import read_state
    from trainwright.report.figures.groups import GROUPS, FigureSource
    from trainwright.report.figures.parameters import contour, scatter
    from trainwright.report.overview import Overview

    names = [f"a_long_name_of_a_parameter_of_block_{number}" for number in range(7)]
    space = tw.Space(
        **{name: tw.Float(1e-6, 1) for name in names}, kind=tw.Choice(*("abcdefgh" + c for c in "abcdefghijkl"))
    )

    def train_long(trial):
        for epoch in trial.epochs():
            trial.report(validation_cross_entropy_of_the_rows_held_out=trial.params[names[0]] + 1 / epoch)

    goal = "min validation_cross_entropy_of_the_rows_held_out"
    with tw.Study(space, goal, directory=tmp_path / "study", seed=0) as made:
        searcher, engine = tw.RandomSearcher(), tw.Local(workers=0)
        made.run(
            train_long, trials=20, searcher=searcher, scheduler=tw.ASHA(max_epochs=9), engine=engine, progress=False
        )
    overview = Overview(read_state(tmp_path / "study"))
    source = FigureSource(overview=overview, directory=tmp_path / "study")
    drawn = [one for group in GROUPS.values() for one in group.draw(source).figures]
    drawn += [contour(overview, space, names[0], "kind"), scatter(overview, space, "kind", names[1])]
    seen, draw = [], paper._draw
    monkeypatch.setattr(paper, "_draw", lambda canvas, *rest: (seen.append(canvas), draw(canvas, *rest)))
    for one in drawn:
        paper.draw_paper_figure(one, tmp_path / "x.pdf", 85)
        canvas = seen[-1]
        canvas.draw_without_rendering()
        plot = canvas.axes[0]
        across = [label for label in plot.get_xticklabels() if label.get_text() and label.get_visible()]
        assert not paper._overlap(across) or across[0].get_rotation() > 0, one.name
        shown = [text for text in plot.texts if text.get_visible() and not text.get_rotation() % 90]
        boxes = [text.get_window_extent() for text in shown]
        assert not any(a.overlaps(b) for at, a in enumerate(boxes) for b in boxes[:at]), one.name
        title = canvas._suptitle.get_window_extent()
        assert title.x0 >= 0
        assert title.x1 <= canvas.bbox.x1, one.name


def test_studies_are_compared(study, tmp_path):
    assert figure(study, "edf", out=tmp_path / "x.svg", compare=[study]).content["width_mm"] == 85


def test_bad_input_is_one_sentence(study, tmp_path):
    for changes, said in [
        ({"name": "curve"}, "'curve' is unknown; allowed: front, progress, curves.*did you mean 'curves'"),
        ({"name": "front"}, "has no figure 'front': it needs two objectives or more"),
        ({"name": "parallel", "of": "rate"}, "nothing is named 'rate'; there are: lr, kind$"),
        ({"width": "3km"}, "got '3km'; allowed: 40mm to 400mm"),
        ({"name": "slice", "of": "rate"}, "nothing is named 'rate'; there are: lr, kind, loss, epochs, seconds"),
        ({"name": "scatter", "of": "lr"}, "--of got 'lr'; allowed for a scatter: two names, such as --of seconds,loss"),
        ({"name": "contour", "of": "lr,loss"}, "nothing is named 'loss'; there are: lr, kind"),
        ({"name": "contour", "of": "lr"}, "--of got 'lr'; allowed for a contour: two names, such as --of lr,width"),
        ({"out": tmp_path / "x.gif"}, "its name must end in .pdf or .svg or .png, got '.gif'"),
    ]:
        options = {"name": "curves", "out": tmp_path / "x.pdf", **changes}
        with pytest.raises(InputError, match=said):
            figure(study, **options)
