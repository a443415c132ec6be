"""The study as a table: one row a trial, columns of one type each."""

import pytest

from trainwright.ledger import facts, fold
from trainwright.ledger.rows import columns, rows


def state_of(*params):
    """Return the state of a study whose trials have these configurations."""
    return fold(
        facts.proposed(number, params=each, key=str(number), origin={}, seen=0, seen_hash="0").stamped("w", number, 1.0)
        for number, each in enumerate(params)
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, None], [1, 2, None]),
        ([1, 2.5, None], [1.0, 2.5, None]),
        (["a", None, "b"], ["a", None, "b"]),
        ([True, None, False], [True, None, False]),
        ([1, "a", None], ["1", '"a"', None]),
        ([None, True, 2], [None, "true", "2"]),
        ([(1, 2), None, "x"], ["[1, 2]", None, '"x"']),
        ([[1, 2], None, [3]], ["[1, 2]", None, "[3]"]),
        ([None, None, None], [None, None, None]),
    ],
)
def test_a_column_has_one_type(values, expected):
    """Whole numbers beside fractions become fractions, other mixtures their JSON texts; what is missing stays so."""
    found = columns(state_of(*({"x": value} for value in values)))["params.x"]
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


def test_a_parameter_that_some_trials_lack():
    state = state_of({"x": 1}, {"y": "a"}, {"x": "b", "y": "c"})
    assert columns(state)["params.x"] == ["1", None, '"b"']
    assert [row["params.y"] for row in rows(state)] == [None, "a", "c"]


def test_a_study_without_trials_has_the_fixed_columns():
    assert columns(fold([]))["number"] == []
