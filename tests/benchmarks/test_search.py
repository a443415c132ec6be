"""The search benchmark end to end, with the peer that needs nothing installed."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.search import judge, run
from benchmarks.search.cells import Cells
from benchmarks.search.data import find_tables


@pytest.fixture
def arguments(tables: Path, tmp_path: Path) -> list[str]:
    given = {
        "--tables": tables,
        "--searchers": "random",
        "--evaluations": 5,
        "--seeds": 3,
        "--cells": tmp_path / "cells",
    }
    return [str(word) for pair in given.items() for word in pair]


def test_last_line_has_the_summary_and_a_second_run_repeats_it_from_kept_cells(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
):
    run.main([*arguments, "--json", "--results", str(tmp_path / "result.json")])
    printed = capsys.readouterr()
    result = json.loads(printed.out.splitlines()[-1])
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert result["summary"]["average_rank"] == {"random": 1.0}
    low, high = result["summary"]["mean_regret_interval"]["random"]
    assert low <= result["summary"]["mean_regret"]["random"] <= high
    assert printed.err.count("final regret") == 6
    kept = (tmp_path / "cells" / "random.jsonl").read_bytes()
    run.main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["summary"] == result["summary"]
    assert printed.err == ""
    assert (tmp_path / "cells" / "random.jsonl").read_bytes() == kept


def test_mean_regret_is_that_of_the_kept_rows(arguments: list[str], tables: Path, tmp_path: Path):
    summary = run.main(arguments)["summary"]
    by_table = {}
    for line in (tmp_path / "cells" / "random.jsonl").read_text().splitlines():
        cell = json.loads(line)
        table = next(t for t in find_tables(tables) if t.name == cell["table"])
        best, regrets, seen = (np.inf, 0), [], []
        for row in cell["rows"]:
            best = min(best, (table.show(cell["seed"], row, seen.count(row)), len(seen), row))
            seen.append(row)
            regrets.append(min(1.0, table.regret([best[2]])[0]))
        by_table.setdefault(cell["table"], []).append(np.mean(regrets))
    assert summary["mean_regret"]["random"] == pytest.approx(np.mean([np.mean(v) for v in by_table.values()]))


def test_a_search_that_diverged_decides_no_mean():
    problem = SimpleNamespace(name="t", family="f")
    regrets = {"a": {"t": np.array([[1e9, 0.2], [0.6, 0.4]])}, "forest": {"t": np.array([[0.8, 0.2], [0.6, 0.4]])}}
    found = judge.judge(regrets, [problem], {"a": 2, "forest": 2})["summary"]
    assert found["mean_regret"] == {"a": pytest.approx(0.55), "forest": pytest.approx(0.5)}
    assert found["final_regret"]["a"] == pytest.approx(0.3)


def test_several_workers_keep_the_budget(arguments: list[str], tmp_path: Path):
    run.main([*arguments, "--workers", "4"])
    cells = Cells(tmp_path / "cells" / "random.jsonl")
    assert {len(cell.rows) for cell in cells._kept.values()} == {5}
    assert {key.workers for key in cells._kept} == {4}


def test_an_absent_peer_is_named_or_stood_for_by_its_kept_searches(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = run.main(arguments)["summary"]
    monkeypatch.setattr(run, "missing", lambda name: "no .peers/any" if name == "random" else None)
    after = run.main(arguments)["summary"]
    assert after["mean_regret"] == before["mean_regret"]
    assert after["skipped"]["random"] == "no .peers/any; kept searches of uniform 1 stand for it"
    with pytest.raises(SystemExit, match="nothing was measured"):
        run.main([*arguments, "--evaluations", "6"])


def test_a_searcher_with_fewer_seeds_is_ranked_among_all_and_leaves_the_others_ranks_alone():
    values = {
        "forest": {"t": np.array([0.1, 0.1])},
        "random": {"t": np.array([0.3, 0.3])},
        "slow": {"t": np.array([0.2])},
    }
    assert judge.ranks(values, {"forest": 2, "random": 2, "slow": 1}) == {"forest": 1.0, "random": 2.0, "slow": 2.0}


def test_an_unknown_searcher_is_refused_by_name(arguments: list[str]):
    with pytest.raises(SystemExit, match="'forrest' is no searcher; known are default, forest, "):
        run.main([*arguments, "--searchers", "forrest"])


def test_a_budget_above_the_table_and_a_bad_number_of_seeds_are_refused(arguments: list[str]):
    with pytest.raises(SystemExit, match="losses/first has only 6 configurations"):
        run.main([*arguments, "--evaluations", "7"])
    with pytest.raises(SystemExit, match="'random:x': the number of seeds"):
        run.main([*arguments, "--searchers", "random:x"])
