"""Operations in their simplest form: the same work, never slower or larger."""

import numpy as np
import pytest

from trainwright.memory import Chain, Stage
from trainwright.plan.memory.known_plans import lowest_plan
from trainwright.plan.memory.operations import parse_operation
from trainwright.plan.memory.planning import simplify_plan
from trainwright.plan.memory.simulate import simulate


def chain(length, seed=0):
    rng = np.random.default_rng(seed)
    return Chain(
        stages=tuple(
            Stage(forward_seconds=1.0, backward_seconds=2.0, output_bytes=a, saved_bytes=a + more)
            for a, more in rng.integers(1, 9, (length, 2)).tolist()
        )
    )


@pytest.mark.parametrize(
    ("listed", "simple"),
    [
        (
            "Fall 1; Fall 2; Del s1; Fall 3; B 3; Fall 1; B 2; B 1",
            "Fck 1; Fall 2; Del a1; Fall 3; B 3; Fall 1; B 2; B 1",
        ),
        (
            "Fck 1; Fck 2; Del a1; Fall 3; B 3; Fall 1; Fall 2; Del a2; B 2; B 1",
            "Fck 1; Fdrop 2; Fall 3; B 3; Fall 1; Fall 2; Del a2; B 2; B 1",
        ),
        (
            "Fall 1; Fall 2; Del s1; Fall 3; B 3; Del s2; Fall 1; Fall 2; B 2; B 1",
            "Fck 1; Fdrop 2; Fall 3; B 3; Del a2; Fall 1; Fall 2; B 2; B 1",
        ),
    ],
)
def test_by_hand(listed, simple):
    """Graphs without a backward are not made; what is read for the last time is dropped with that."""
    operations = tuple(map(parse_operation, listed.split(";")))
    assert simulate(chain(2), operations).fits
    assert "; ".join(map(str, simplify_plan(chain(2), operations))) == simple
    assert simplify_plan(chain(2), simplify_plan(chain(2), operations)) == simplify_plan(chain(2), operations)


def test_never_worse():
    """Plans where every forward makes a graph become as small as the simulator demands, and stay valid."""
    for seed in range(40):
        subject = chain(6, seed)
        operations, _ = lowest_plan(subject)
        wasteful = tuple(parse_operation(str(each).replace("Fck", "Fall")) for each in operations)
        for listed in (operations, wasteful):
            before = simulate(subject, listed)
            if before.fits:
                after = simulate(subject, simplify_plan(subject, listed))
                assert after.fits
                assert after.seconds <= before.seconds
                assert after.peak_bytes <= before.peak_bytes
