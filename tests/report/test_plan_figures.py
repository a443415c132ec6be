"""Figures of what was planned: forecasts against what happened, memory plans, strategies; from files as they are."""

import json
import math

import pytest

from trainwright.ledger import DirectoryLedger, fold
from trainwright.memory import Chain, Stage
from trainwright.memory import plan as plan_step
from trainwright.report import write_report
from trainwright.report.figures.forecast import forecast_figure
from trainwright.report.figures.groups import draw_plans
from trainwright.report.figures.memory_plan import memory_plan_figure
from trainwright.report.figures.strategies import strategies_figures
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.overview import Overview
from trainwright.report.study_plans import plans_of

COST = {"device_hours": 2.0, "device_hours_90": 3.0, "wall_seconds": 600.0, "wall_seconds_90": 900.0}


@pytest.fixture(scope="module")
def overview(asha) -> Overview:
    return Overview(fold(DirectoryLedger(asha / "ledger").read()[0]))


@pytest.fixture(scope="module")
def memory_plan():
    stage = Stage(name="layer", forward_seconds=0.001, backward_seconds=0.002, output_bytes=3_000, saved_bytes=9_000)
    chain = Chain(stages=(stage,) * 8, input_bytes=1_000, fixed={"parameters": 20_000}, name="tower")
    return plan_step(chain, budget=0.8)


def strategy(name: str, seconds: float, devices: int = 4) -> dict:
    parts = {"compute": 0.7 * seconds, "communication": 0.3 * seconds, "framework": 0.0, "bubble": 0.0}
    return {
        "strategy": name, "devices": devices, "seconds_per_iteration": seconds, "breakdown": parts, "peak_bytes": 10**9,
    }  # fmt: skip


def test_a_forecast_beside_what_happened(overview):
    figure = forecast_figure(overview, {"cost": COST, "trials": 100})
    traces = {trace["name"]: trace for trace in figure.data}
    assert traces["forecast, median"]["y"] == [0, 2.0]
    happened = traces["happened"]
    spent = [overview.trials[at].device_seconds / 3600 for at in overview.results]
    assert happened["x"][-1] == len(spent)
    assert happened["y"][-1] == pytest.approx(math.fsum(spent), rel=1e-5)
    assert "100 trials were forecast to take 2 device-hours" in figure.caption


@pytest.mark.parametrize("plan", [None, {}, {"cost": COST}, {"cost": {"device_hours": "x"}, "trials": 3}])
def test_without_a_forecast_there_is_no_figure(overview, plan):
    assert forecast_figure(overview, plan) is None


def test_the_areas_of_a_memory_plan_add_up_to_its_peak(memory_plan):
    figure = memory_plan_figure(memory_plan, "memory")
    top, unit = max(figure.data[-1]["y"]), figure.layout["yaxis"]["title"]["text"]
    size = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}[unit]
    assert top * size == pytest.approx(memory_plan.peak_bytes, rel=1e-4)
    for below, above in zip(figure.data, figure.data[1:], strict=False):
        assert above["under"] == below["y"]


def test_strategies_are_ranked_for_each_number_of_devices():
    plans = [strategy("tensor", 0.2), strategy("data", 0.1), strategy("data", 0.05, 8), strategy("data", 0.3)]
    told = {"plans": plans, "rejected": [{}, {}], "profile": {"name": "<gpt>"}}
    four, eight = strategies_figures(told, "strategies")
    assert four.data[0]["y"] == ["data", "tensor", "data (3)"]
    assert four.data[1]["base"] == pytest.approx([70.0, 140.0, 210.0])
    assert "2 strategies cannot be used" in four.caption
    assert "&lt;gpt&gt;" in eight.title


def test_plans_are_found_by_what_they_hold(tmp_path, memory_plan):
    memory_plan.save(tmp_path / "step.json")
    (tmp_path / "oracle.json").write_text(json.dumps({"plans": [strategy("data", 0.1)], "rejected": []}))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('["plans"]')
    (tmp_path / "old.json").write_text(json.dumps({"kind": "memory plan", "schema": 0}))
    (tmp_path / "odd.json").write_text(json.dumps({"layout": {}, "forecast": {}, "schema": 0}))
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "plan.json").write_text(json.dumps({"content": {"cost": COST, "trials": 5}}))
    found = plans_of(tmp_path)
    assert [name for name, _ in found.memory] == ["step"]
    assert [name for name, _ in found.strategies] == ["oracle"]
    assert found.search["trials"] == 5
    assert [line.partition(":")[0] for line in found.refused] == ["odd.json", "old.json"]
    assert all("schema" in line for line in found.refused)


def test_a_folder_without_plans(tmp_path):
    found = plans_of(tmp_path / "nowhere")
    assert (found.search, found.memory, found.strategies, found.refused) == (None, [], [], [])


def test_they_are_in_the_report_as_on_the_page(scribe, memory_plan):
    """Forecast, memory plans and strategies in one section, and what cannot be read as a sentence."""
    scribe.create()
    (scribe.directory / "stages").mkdir()
    (scribe.directory / "stages" / "plan.json").write_text(json.dumps({"content": {"cost": COST, "trials": 5}}))
    memory_plan.save(scribe.directory / "step.json")
    told = {"plans": [strategy("data", 0.1)], "rejected": [], "profile": {"name": "<gpt>"}}
    (scribe.directory / "oracle.json").write_text(json.dumps(told))
    (scribe.directory / "old.json").write_text(json.dumps({"kind": "memory plan", "schema": 0}))
    text = write_report(scribe.directory).read_text()
    figures = [figure.name for figure in draw_plans(Overview(fold([])), plans_of(scribe.directory))]
    assert len(set(figures)) == 3
    assert all(f'id="plot-{name}"' in text for name in figures)
    assert '<section id="plans"' in text
    assert "old.json: " in text


def test_devices_over_time(asha_study, tmp_path):
    """Where all runs name one device, slots stand for devices."""
    study = asha_study(tmp_path / "study", 12, workers=2)
    one = utilisation(Overview(fold(study.records)), by="device")
    assert one.title == "Workers"
    for record in study.records:
        if record.kind == "started":
            record.body["devices"] = ["cuda:0", "cuda:1"] if record.trial % 2 else ["cuda:1"]
    both = utilisation(Overview(fold(study.records)), by="device")
    assert both.title == "Devices"
    assert both.layout["yaxis"]["categoryarray"] == ["cuda:1", "cuda:0"]
