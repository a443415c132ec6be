"""Figures as data: of words that the page knows, coloured by its themes, thinned, and right in what they show."""

import json
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ledger import DirectoryLedger, State, fold
from trainwright.report.figures.best_so_far import best_so_far
from trainwright.report.figures.learning_curves import learning_curves
from trainwright.report.figures.objectives import trade_offs
from trainwright.report.figures.parallel_coordinates import parallel_coordinates
from trainwright.report.figures.parameters import importance_figure
from trainwright.report.figures.utilisation import _busy_shares, _Run, utilisation
from trainwright.report.overview import Clock, Overview
from trainwright.search.importance import importance_of
from trainwright.space import Space


def read(directory) -> State:
    return fold(DirectoryLedger(directory / "ledger").read()[0])


@pytest.fixture(scope="module")
def overview(asha) -> Overview:
    return Overview(read(asha))


@pytest.fixture(scope="module")
def big(tmp_path_factory, asha_study) -> Overview:
    return Overview(read(asha_study(tmp_path_factory.mktemp("big") / "study", 2000, workers=80).write()))


@pytest.fixture(scope="module")
def few(overview) -> list:
    return figures(overview)


@pytest.fixture(scope="module")
def many(big) -> list:
    return figures(big)


def figures(overview: Overview) -> list:
    space = Space.from_json(overview.state.space)
    importance = importance_of(overview.state, space)
    return [
        *best_so_far(overview),
        learning_curves(overview),
        importance_figure(importance, "val_loss"),
        parallel_coordinates(overview, space),
        utilisation(overview),
    ]


def words(value):
    """Yield every key in a figure."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from words(item)


def test_the_page_knows_every_word(few, many):
    """A misspelt property would silently do nothing."""
    assets = resources.files("trainwright.report").joinpath("assets")
    script = "".join(assets.joinpath(name).read_text(encoding="utf-8") for name in ("chart.js", "scales.js"))
    known = set(re.findall(r"[a-z]\w*", script))
    for figure in [*few, *many]:
        assert {word.rstrip("2") for word in words([figure.data, figure.layout])} <= known, figure.name


def test_every_colour_is_in_both_themes(few, many):
    style = resources.files("trainwright.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    names = set()
    for figure in [*few, *many]:
        names |= set(re.findall(r'"(--[a-z0-9-]+)"', json.dumps([figure.data, figure.layout])))
    assert {"--blue", "--orange", "--ink"} <= names
    for name in names:
        assert f"{name}:" in light, name
        assert f"{name}:" in dark, name


def test_many_trials_are_thinned_and_the_caption_says_so(big, many):
    found = {figure.name: figure for figure in many}
    for figure in found.values():
        assert len(json.dumps([figure.data, figure.layout])) < 400_000, figure.name
    assert re.search(r"1,5\d\d of 1,9\d\d results are drawn", found["best-results-0"].caption)
    assert re.search(r"of 2,000 trials are drawn: the best ones", found["curves-0"].caption)
    assert "250 of 1,9" in found["parallel"].caption
    [line] = found["utilisation"].data
    assert line["name"] == "busy slots"
    best = {trace["name"]: trace for trace in found["curves-0"].data}["best"]
    assert set(best["customdata"]) - {None} == {big.best.number}


def test_stopped_trials_and_rungs_are_told_apart(overview):
    figure = learning_curves(overview)
    traces = {trace["name"]: trace for trace in figure.data}
    assert set(traces) == {"stopped early", "stopped here", "complete", "failed", "best"}
    assert {trace["line"]["color"] for name, trace in traces.items() if "line" in trace and name != "stopped here"} == {
        "--muted", "--blue", "--red", "--orange",
    }  # fmt: skip
    assert [shape["x0"] for shape in figure.layout["shapes"]] == [1, 3, 9]
    assert set(traces["stopped here"]["x"]) == {1, 3, 9}
    assert figure.layout["xaxis"]["tickvals"] == [1, 3, 9, 27]


def test_best_so_far_never_gets_worse(overview):
    results, time = best_so_far(overview)
    for figure in (results, time):
        line = figure.data[-1]
        assert line["name"] == "best so far"
        assert line["y"] == sorted(line["y"], reverse=True)
        assert line["x"] == sorted(line["x"])
    assert min(results.data[-1]["y"]) == pytest.approx(np.nanmin(overview.values), rel=1e-5)


def test_a_gap_parts_the_curves_of_one_trace(overview):
    trace = learning_curves(overview).data[0]
    for x, y, number in zip(trace["x"], trace["y"], trace["customdata"], strict=True):
        assert (x is None) == (number is None) == (y is None)


def test_parallel_coordinates_place_values_and_what_is_inactive(overview):
    space = Space.from_json(overview.state.space)
    figure = parallel_coordinates(overview, space)
    best = next(trace for trace in figure.data if trace["name"] == "best tenth")
    number = best["customdata"][0]
    params = overview.state.trials[number].params
    units = dict(zip([c.name for c in space.columns], best["y"], strict=False))
    assert units["lr"] == pytest.approx((np.log10(params["lr"]) + 4) / 4, abs=1e-3)
    assert units["optimizer"] == ["sgd", "adamw"].index(params["optimizer"])
    assert (units["momentum"] < 0) == ("momentum" not in params)
    assert figure.least_width > 600


def test_no_trade_off_for_one_objective(overview):
    assert trade_offs(overview) == []


losses = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


@settings(max_examples=60)
@given(losses=losses, bound=st.integers(0, 5))
def test_front_and_ranking_against_brute_force(losses, bound, of_values):
    """The front holds what nothing dominates, within the bound if anything is; the ranking starts with it."""
    overview = of_values(["min a", f"max b >= {-bound}"], [{"a": a, "b": -b} for a, b in losses])
    pool = [at for at, (_, b) in enumerate(losses) if b <= bound] or list(range(len(losses)))
    expected = {
        at
        for at in pool
        if not any(
            losses[o][0] <= losses[at][0] and losses[o][1] <= losses[at][1] and losses[o] != losses[at] for o in pool
        )
    }
    assert set(overview.front.tolist()) == expected
    assert sorted(overview.ranking.tolist()) == list(range(len(losses)))
    assert set(overview.ranking[: len(expected)].tolist()) == expected


def test_the_clock_leaves_breaks_out():
    clock = Clock.of(np.array([[0.0, 100.0], [50.0, 110.0], [5000.0, 5100.0], [5105.0, 5200.0]]))
    assert clock.total == 310.0
    assert clock.breaks.tolist() == [110.0]
    times = np.array([0.0, 110.0, 3000.0, 5000.0, 5103.0, 9000.0])
    assert clock.seconds(times).tolist() == [0, 110, 110, 110, 213, 310]
    assert Clock.of(np.zeros((0, 2))).total == 0.0


spans = st.lists(
    st.tuples(st.floats(0, 90), st.floats(0.1, 10)).map(lambda span: (span[0], span[0] + span[1])), min_size=1
)


@settings(max_examples=50)
@given(spans=spans)
def test_busy_shares_keep_the_busy_seconds(spans):
    """Summed over time bins and slots, work lasts as long as its runs did; runs of one slot never overlap."""
    runs = [_Run(at, str(at), start, end, "complete") for at, (start, end) in enumerate(spans)]
    busy = _busy_shares(runs, len(runs), 100.0)
    assert busy.min() >= 0.0
    assert busy.max() <= 1.0
    seconds = busy.sum() * len(runs) * 100.0 / len(busy)
    np.testing.assert_allclose(seconds, sum(end - start for start, end in spans), atol=1e-6)


def test_slots_of_several_hosts_are_kept_apart(tmp_path, two_hosts):
    figure = utilisation(Overview(read(two_hosts)))
    assert figure.layout["yaxis"]["categoryarray"] == ["node-2 0", "node-1 0"]
