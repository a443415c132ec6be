"""The hold-outs are in no list that anything was tuned on, and say where the defaults are behind."""

import math

import pytest
from benchmarks.ensemble.tables_data import TABLES
from benchmarks.holdouts import Case, main

from benchmarks import holdouts


def test_behind_is_any_rival_that_is_better():
    case = Case(part="search", name="x", unit="", ours=0.5, rivals={"a": 0.6, "b": 0.5})
    assert (case.best_rival, case.behind) == ("b", False)
    assert Case(part="search", name="x", unit="", ours=0.5001, rivals={"a": 0.6, "b": 0.5}).behind
    # What could not be measured is no lead.
    assert Case(part="search", name="x", unit="", ours=math.nan, rivals={"a": 1.0}).behind


def test_families_are_in_no_list():
    pytest.importorskip("transformers")
    from benchmarks.memory.models import MODELS
    from benchmarks.plan.peak_models import MODELS as PEAKS

    listed = {name.lower() for name in (*MODELS, *PEAKS)}
    assert not {name.lower() for name in holdouts.FAMILIES} & listed
    assert not {"wine", "hastie", "quantiles", "iris"} & set(TABLES)


def test_a_part_in_small(tmp_path, capsys):
    """The curves that cross late: random search without a rule may be better, and then it is said."""
    result = main(["--parts", "fidelity", "--size", "1", "--seeds", "1", "--results", str(tmp_path / "out.json")])
    [case] = result["cases"]
    assert set(case["rivals"]) == {"random+asha", "random"}
    said = capsys.readouterr().out
    assert ("BEHIND" in said) == case["behind"] == (result["summary"]["behind"] == 1)
    assert (tmp_path / "out.json").exists()


def test_what_it_refuses(capsys):
    with pytest.raises(SystemExit):
        main(["--parts", "speed"])
    assert "got 'speed'; allowed: search, fidelity" in capsys.readouterr().err
