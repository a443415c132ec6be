"""The forecast of a search against what happened, and devices over time."""

import json
import math

import pytest

from trainwright.ledger import DirectoryLedger, fold
from trainwright.report import write_report
from trainwright.report.figures.forecast import forecast_figure, read_search_plan
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.overview import Overview

COST = {"device_hours": 2.0, "device_hours_90": 3.0, "wall_seconds": 600.0, "wall_seconds_90": 900.0}


@pytest.fixture(scope="module")
def overview(asha) -> Overview:
    return Overview(fold(DirectoryLedger(asha / "ledger").read()[0]))


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


def write_plan_stage(folder, text):
    (folder / "stages").mkdir()
    (folder / "stages" / "plan.json").write_text(text)


@pytest.mark.parametrize("text", ["{", "[]", '{"content": 3}'])
def test_a_record_that_cannot_be_read_is_no_forecast(tmp_path, text):
    assert read_search_plan(tmp_path) is None
    write_plan_stage(tmp_path, text)
    assert read_search_plan(tmp_path) is None


def test_it_is_in_the_report(scribe):
    scribe.create()
    write_plan_stage(scribe.directory, json.dumps({"content": {"cost": COST, "trials": 5}}))
    text = write_report(scribe.directory).read_text()
    assert '<section id="plans"' in text
    assert 'id="plot-forecast"' in text


def test_devices_over_time(asha_study, tmp_path):
    """Where all runs name one device, slots stand for devices."""
    study = asha_study(tmp_path / "study", 12, workers=2)
    one = utilisation(Overview(fold(study.records)))
    assert one.title == "Workers"
    for record in study.records:
        if record.kind == "started":
            record.body["devices"] = ["cuda:0", "cuda:1"] if record.trial % 2 else ["cuda:1"]
    both = utilisation(Overview(fold(study.records)))
    assert both.title == "Devices"
    assert both.layout["yaxis"]["categoryarray"] == ["cuda:1", "cuda:0"]
