"""Numbers and times as a reader wants them."""

import math

import pytest

from trainwright.report.formatting import DASH, aligned, count, duration, embedded_json, escape, number, shown

MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.08123456, "0.08123"), (12340, "12,340"), (3.0, "3"), (0.0, "0"), (-2.5, f"{MINUS}2.500"),
        (1.234e-5, f"1.23e{MINUS}05"), (1.5e9, "1.50e+09"), (None, DASH), (math.nan, DASH), (math.inf, "∞"),
        (-math.inf, f"{MINUS}∞"),
    ],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text


def test_columns_line_up():
    """All numbers of a column have as many decimals as tell them apart, or exponents if they span decades."""
    assert aligned([0.123456, 0.1, None]) == ["0.1235", "0.1000", DASH]
    assert aligned([0.1, 0.25, 0.3]) == ["0.10", "0.25", "0.30"]
    assert aligned([1e-5, 1e-1]) == [f"1.0e{MINUS}05", f"1.0e{MINUS}01"]
    assert aligned([16, 256]) == ["16", "256"]
    assert aligned([None, math.nan, math.inf]) == [DASH, DASH, "∞"]
    assert aligned([]) == []


def test_duration():
    assert [duration(s) for s in (0, 0.05, 4.26, 48.2, 59.9, 192, 7500, 270000)] == [
        "0.0 s", "0.05 s", "4.3 s", "48 s", "1 min 0 s", "3 min 12 s", "2 h 5 min", "3 d 3 h",
    ]  # fmt: skip


def test_texts():
    assert escape("<b>'&\"") == "&lt;b&gt;&#x27;&amp;&quot;"
    assert escape("<" * 50, 10) == "&lt;" * 9 + "…"
    assert "<" not in embedded_json({"</script>": "<!--\u2028"})
    assert shown((1, 0.00012345)) == "(1, 0.000123)"
    assert shown(True) == "True"
    assert [count(n, "trial") for n in (0, 1, 2000)] == ["no trials", "1 trial", "2,000 trials"]
