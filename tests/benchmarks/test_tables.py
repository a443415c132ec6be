"""Tables of the pages come from the result files."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import tables


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environment = {"cpu": "Any", "cores": 2, "python": "3.11.7", "revision": "abc"}
    result = {"table": {"header": ["searcher", "regret"], "rows": [["forest", "0.1"]]}, "environment": environment}
    (tmp_path / "search.json").write_text(json.dumps(result))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- benchmark:search -->\nold\n<!-- end -->\nafter\n")
    return page


def test_a_block_is_filled_once_and_then_left(page: Path):
    assert tables.main([str(page)]) == 0
    text = page.read_text()
    assert "| forest   |    0.1 |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- benchmark:search -->\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert tables.main([str(page), "--check"]) == 0


def test_check_finds_a_page_that_differs_and_leaves_it(page: Path):
    before = page.read_text()
    assert tables.main([str(page), "--check"]) == 1
    assert page.read_text() == before


def test_a_block_may_show_some_columns_and_rows(page: Path):
    result = json.loads((tables.RESULTS / "search.json").read_text())
    result["table"] = {"header": ["searcher", "seeds", "regret"], "rows": [["forest", 3, "0.1"], ["random", 3, "0.4"]]}
    (tables.RESULTS / "search.json").write_text(json.dumps(result))
    page.write_text('<!-- benchmark:search columns="1,3" rows="^forest" -->\n<!-- end -->\n')
    tables.main([str(page)])
    text = page.read_text()
    assert "| searcher | regret |" in text
    assert "random" not in text
    assert "1 of 2 rows of results/search.json" in text


@pytest.fixture
def two_results(page: Path) -> Path:
    other = json.loads((tables.RESULTS / "search.json").read_text())
    other["table"]["rows"] = [["random", "0.4"], ["forest", "0.2"]]
    other["environment"]["revision"] = "def"
    (tables.RESULTS / "wide.json").write_text(json.dumps(other))
    return page


def test_two_results_stand_next_to_one_another(two_results: Path):
    two_results.write_text('<!-- benchmark:search+wide labels="few,many" columns="2" -->\n<!-- end -->\n')
    tables.main([str(two_results)])
    cells = [line.split("|")[1:-1] for line in two_results.read_text().splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["searcher", "few, regret", "many, regret"], ["forest", "0.1", "0.2"], ["random", "", "0.4"],
    ]  # fmt: skip
    assert "revision abc; Any, 2 cores, Python 3.11.7, revision def" in two_results.read_text()


def test_a_wrong_number_of_labels_is_refused(two_results: Path):
    two_results.write_text('<!-- benchmark:search+wide labels="few" -->\n<!-- end -->\n')
    with pytest.raises(SystemExit, match="2 results need 2 labels, not 1"):
        tables.main([str(two_results)])


def test_a_block_without_result_is_named(page: Path):
    page.write_text("<!-- benchmark:speed -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="benchmark 'speed'"):
        tables.main([str(page)])


def test_every_kept_result_is_on_the_page_of_benchmarks():
    """No result is measured, kept, and shown nowhere."""
    page = (tables.ROOT / "docs" / "benchmarks.md").read_text()
    kept = [path for path in tables.RESULTS.glob("*.json") if "table" in json.loads(path.read_text())]
    assert kept
    shown = {name for names in re.findall(r"<!-- benchmark:([\w+-]+)", page) for name in names.split("+")}
    assert {path.stem for path in kept} == shown


def test_latencies_of_a_load_that_did_not_keep_up_are_left_out():
    """Its other figures are told."""
    from benchmarks.serve.run import _told

    figures = {"http_long_p99_ms": 1670.0, "http_long_memory_growth_percent": 1.0}
    assert _told({**figures, "http_long_valid": True}) >= figures.keys()
    assert _told({**figures, "http_long_valid": False}) & figures.keys() == {"http_long_memory_growth_percent"}
    shown = json.loads((tables.ROOT / "benchmarks/results/serve.json").read_text())
    valid = shown["summary"].get("http_long_valid", False)
    assert valid or not any("p99 at 80 %" in row[0] for row in shown["table"]["rows"])
