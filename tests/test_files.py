"""What JSON cannot say becomes null, at any depth; all else stays what it was."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from trainwright.files import plain

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(VALUES)
def test_reads_back_as_it_was_but_for_what_is_not_finite(value):
    def expected(part):
        if isinstance(part, dict):
            return {name: expected(item) for name, item in part.items()}
        if isinstance(part, list):
            return [expected(item) for item in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected(value)


def test_names_become_strings_and_tuples_lists():
    assert plain({1: (2.0, math.inf)}) == {"1": [2.0, None]}
