"""Bounds and constraints in reports and summaries, and the course of the hypervolume."""

import json
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.report import write_summary
from trainwright.report.figures.best_so_far import best_so_far
from trainwright.report.html import header_html
from trainwright.report.overview import Overview
from trainwright.report.tables import best_trials

SPACE = tw.Space(x=tw.Float(0.0, 1.0))


def told(tmp_path, goals, values):
    limits = ["bytes <= 5"]
    with tw.Study(
        SPACE, goals, constraints=limits, directory=tmp_path / "study", searcher=tw.RandomSearcher()
    ) as study:
        for each in values:
            study.tell(study.ask(), **each)
        return study


def test_one_objective(tmp_path):
    """The infeasible trial of least loss is neither the best of the summary nor on the line of the best so far."""
    study = told(
        tmp_path, "min loss", [{"loss": 0.1, "bytes": 9}, {"loss": 0.9, "bytes": 4}, {"loss": 0.5, "bytes": 1}]
    )
    summary = write_summary(tmp_path / "study")
    assert summary["feasible"] == 2
    assert summary["best"] == {"trial": 2, "values": {"loss": 0.5, "bytes": 1.0}}
    assert json.loads((tmp_path / "study" / "summary.json").read_text()) == summary
    overview = Overview(study.state)
    figure, _ = best_so_far(overview)
    assert "0.5000 by trial 2" in figure.caption
    assert [trace["name"] for trace in figure.data] == ["infeasible", "complete", "best so far"]
    assert figure.data[-1]["y"] == [0.9, 0.5, 0.5]
    header = header_html(overview, name="study", directory=Path("study"), dropped=0)
    assert "<code>min loss</code>, with <code>bytes &lt;= 5</code>" in header
    assert "<dt>feasible</dt><dd>2<small>of 3 results" in header
    assert "infeasible ones last" in best_trials(overview)


def test_nothing_is_feasible(tmp_path):
    study = told(tmp_path, "min loss", [{"loss": 0.1, "bytes": 9}, {"loss": 0.9, "bytes": 8}])
    summary = write_summary(tmp_path / "study")
    assert (summary["feasible"], summary["best"]) == (0, None)
    overview = Overview(study.state)
    assert "none keeps all bounds and constraints" in best_trials(overview)
    assert "<dt>feasible</dt><dd>none<small>" in header_html(overview, name="study", directory=Path("study"), dropped=0)


def test_several_objectives(tmp_path):
    values = [
        {"loss": 2.0, "cost": 1.0, "bytes": 1},
        {"loss": 0.0, "cost": 0.0, "bytes": 9},
        {"loss": 1.0, "cost": 2.0, "bytes": 1},
    ]
    study = told(tmp_path, ["min loss", "min cost"], values)
    summary = write_summary(tmp_path / "study")
    assert summary["front"] == [0, 2]
    assert summary["hypervolume"] == pytest.approx(study.hypervolume) == summary["hypervolume_over_time"][-1]
    assert len(summary["hypervolume_over_time"]) == 3


def test_too_few_for_a_volume(tmp_path):
    told(tmp_path, ["min loss", "min cost"], [{"loss": 2.0, "cost": 1.0, "bytes": 1}])
    assert write_summary(tmp_path / "study")["hypervolume"] is None
