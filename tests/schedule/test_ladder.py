"""The rung ladder against integer powers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.schedule import ASHA
from trainwright.schedule.rules.rung_rule import as_fraction, rung_ladder


@pytest.mark.parametrize("eta", range(2, 13))
@pytest.mark.parametrize("least", [1, 2, 3, 7])
def test_whole_eta_gives_integer_powers(eta, least):
    """Rungs are least * eta^k below the full length, at the power itself, one below and one above."""
    for top in range(13):
        length = least * eta**top
        for around in (length - 1, length, length + 1):
            if around >= least:
                expected = [least * eta**k for k in range(14) if least * eta**k < around]
                assert list(rung_ladder(least, around, Fraction(eta))) == expected


@pytest.mark.parametrize(
    ("least", "length", "eta", "count"),
    [(3, 243, 3, 4), (1, 243, 3, 5), (1, 9**5, 9, 5), (1, 10**3, 10, 3), (1, 10**6, 10, 6), (1, 5**3, 5, 3)],
)
def test_traps_of_logarithms(least, length, eta, count):
    """Where floor(log(R / r) / log(eta)) comes out one short, no rung is lost."""
    assert len(rung_ladder(least, length, Fraction(eta))) == count
    assert len(ASHA(max_epochs=length, min_epochs=least, eta=eta).rungs) == count


@given(
    least=st.integers(1, 20),
    length=st.integers(1, 3000),
    eta=st.fractions(Fraction(11, 10), 5, max_denominator=20),
)
def test_fractional_eta_rounds_up_and_rises(least, length, eta):
    """Rungs are the different values of ceil(r * eta^k) below R, in exact arithmetic."""
    powers = {math.ceil(least * eta**k) for k in range(120)}
    expected = sorted(rung for rung in powers if rung < length)
    assert list(rung_ladder(least, length, eta)) == (expected if least < length else [])


def test_decimal_eta_is_exact():
    """2.5 is 5/2 and 1.1 is 11/10, not their binary neighbours."""
    assert (as_fraction(2.5), as_fraction(1.1)) == (Fraction(5, 2), Fraction(11, 10))
    assert ASHA(max_epochs=100, min_epochs=1, eta=2.5).rungs == (1, 3, 7, 16, 40, 98)


@pytest.mark.parametrize("eta", [2, 2.5, 3, 4])
@pytest.mark.parametrize("length", [1, 5, 9, 27, 50, 52, 81, 100, 1000])
def test_without_a_first_rung_there_are_three_at_most(length, eta):
    rule = ASHA(max_epochs=length, eta=eta)
    assert len(rule.rungs) <= 3
    assert rule.first_rung == max(1, math.ceil(length / as_fraction(eta) ** 3))
    assert rule.rungs == ASHA(max_epochs=length, min_epochs=rule.first_rung, eta=eta).rungs
