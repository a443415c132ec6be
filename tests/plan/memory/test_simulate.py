"""The simulator: bytes and seconds counted by hand, every rule broken once, copies in both directions."""

from dataclasses import astuple

import numpy as np
import pytest
from reference_simulator import simulate as reference_simulate

from memory_chains import budgets, random_chain
from trainwright.errors import ChainError
from trainwright.memory import Chain, Link, Stage
from trainwright.plan.memory.copy_schedule import place_copies
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.operations import PREFETCH, operations_of, parse_operation, rows_of
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of


def stage(forward, backward, out, saved, **more):
    return Stage(forward_seconds=forward, backward_seconds=backward, output_bytes=out, saved_bytes=saved, **more)


CHAIN = Chain(
    stages=(stage(1.0, 2.0, 10, 15), stage(3.0, 4.0, 20, 26, forward_temporary_bytes=5, backward_temporary_bytes=7)),
    input_bytes=100,
    fixed={"parameters": 1000},
)


def run(text, **settings):
    return simulate(CHAIN, [parse_operation(each) for each in text.split(";")], **settings)


def test_everything_kept():
    """Peak in the backward of stage 2: saved 15 + 26, gradients 20 + 10, temporaries 7."""
    found = run("Fall 1; Fall 2; Fall 3; B 3; B 2; B 1")
    assert found.fits
    assert (found.seconds, found.peak_bytes, found.peak_operation) == (10.0, 1100 + 15 + 26 + 20 + 10 + 7, 4)
    assert dict(found.peak_owners) == {
        "parameters": 1000,
        "input": 100,
        "saved values of stage 1": 15,
        "saved values of stage 2": 26,
        "temporaries of stage 2": 7,
        "gradient at stage 2": 30,
    }
    assert found.end_bytes == 1100


def test_recomputing():
    """Stage 1 runs twice; while stage 2 is saved, only the bare output of stage 1 is alive beside it."""
    found = run("Fck 1; Fall 2; Fall 3; B 3; B 2; Del a1; Fall 1; B 1")
    assert found.fits
    assert (found.seconds, found.peak_bytes) == (11.0, 1100 + 10 + 26 + 20 + 10 + 7)
    dropped = run("Fck 1; Fdrop 2; Fall 3; B 3; Del a2; Fall 1; Fall 2; B 2; B 1")
    assert dropped.seconds == 14.0


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("Fall 2", 0, "saved values of stage 1 is not there"),
        ("Fall 1; B 1", 1, "the gradient of stage 3 is there, not of 1"),
        ("Fck 1; Fck 1", 1, "there already"),
        ("Fall 1; Fall 2; Del a2", 2, "it is not there"),
        ("Fall 1; Fck 2; Fall 3; B 3; B 2", 4, "saved values of stage 2 is not there"),
        ("Fall 1; Fall 2; Fall 3; B 3; B 2", 5, "ends before backward 1"),
        ("Fall 4", 0, "no stage 4"),
        ("Fall 1/1", 0, "no option 1"),
        ("Fall 1; Off s1", 1, "no link"),
    ],
)
def test_what_is_wrong(text, place, reason):
    found = run(text)
    assert found.violation.operation == place
    assert reason in found.violation.reason


def test_budget():
    """The first operation over the budget is named; one byte more, and it runs."""
    text = "Fall 1; Fall 2; Fall 3; B 3; B 2; B 1"
    assert run(text, budget_bytes=1178).fits
    found = run(text, budget_bytes=1177)
    assert found.violation.operation == 4
    assert "1178 bytes, the budget is 1177" in found.violation.reason


def test_copies_overlap_with_work():
    """Ten bytes a second leave behind stage 2 (3 s) and are back behind its backward (4 s): nothing waits."""
    found = run("Fall 1; Off s1; Fall 2; Fall 3; Pre s1; B 3; B 2; B 1", link=Link(to_host=10, to_device=10))
    assert found.fits
    assert found.seconds == 10.0 + 1.5  # the backward of stage 2 reads what stage 1 saved
    assert [(span.lane, span.start_seconds, span.end_seconds) for span in found.spans if span.lane != "compute"] == [
        ("to host", 1.0, 2.5),
        ("to device", 4.0, 5.5),
    ]


def test_a_leaving_value_is_alive_until_its_reader_ends():
    """Stage 2 reads saved 1 until second 4, though its copy has ended at 2.5."""
    found = run("Fall 1; Off s1; Fall 2; Fall 3; Pre s1; B 3; B 2; B 1", link=Link(to_host=10, to_device=10))
    assert found.releases == {1: (4.0, 2)}
    assert found.peak_bytes == 1100 + 15 + 26 + 20 + 10 + 7


def test_work_waits_for_bytes_that_are_leaving():
    """Within the budget the loss's forward has room only when the copy has ended; without copies it never has."""
    chain = Chain(stages=(stage(1.0, 1.0, 10, 15), stage(1.0, 1.0, 1, 1), stage(1.0, 1.0, 1, 12)))
    text = "Fall 1; Off s1; Fall 2; Fall 3; Fall 4; B 4; B 3; Pre s1; B 2; B 1"
    operations = [parse_operation(each) for each in text.split(";")]
    link = Link(to_host=5, to_device=100)
    found = simulate(chain, operations, budget_bytes=27, link=link)
    assert found.fits
    assert found.seconds == chain.plain_seconds + 2.0 + 0.15  # from second 2 to 4, and until 15 bytes are back
    assert "budget" in simulate(chain, operations, budget_bytes=15, link=link).violation.reason


def test_both_ways_at_once_is_slower():
    link = Link(to_host=10, to_device=10, to_host_together=5, to_device_together=5)
    chain = Chain(stages=(stage(1.0, 1.0, 10, 10), stage(0.0, 1.0, 10, 10), stage(4.0, 1.0, 1, 1)))
    text = "Fall 1; Off s1; Fall 2; Fall 3; Off s2; Pre s1; Fall 4; B 4; B 3; Pre s2; B 2; B 1"
    found = simulate(chain, [parse_operation(each) for each in text.split(";")], link=link)
    spans = {(span.lane, span.start_seconds): span.end_seconds for span in found.spans}
    assert found.fits
    assert spans["to host", 5.0] == 7.0  # ten bytes at five a second, while ten others come back
    assert spans["to device", 5.0] == 7.0


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), "fast", True])
def test_links_have_bandwidths(bad):
    with pytest.raises(ChainError, match=r"Link\.to_host"):
        Link(to_host=bad, to_device=1.0)


@pytest.mark.parametrize("seed", range(12))
def test_the_machine_beside_one_written_apart(seed):
    """Equal in seconds, bytes, owners, spans, releases, and in what fails where and why, in order and in disorder."""
    random = np.random.default_rng(seed)
    chain = random_chain(seed, least=3, most=9, options=seed % 2, split=seed % 3 == 0)
    link = Link(to_host=2.0, to_device=3.0, to_host_together=1.5, to_device_together=1.0)
    fits = 0
    for budget in budgets(chain, lowest_with_copies(chain)[1], 4):
        room = budget - chain.fixed_bytes
        for more in (2, 3):
            solved = solve_persistent(chain, chain.fixed_bytes + more * room)
            rows = rows_of(lowest_with_copies(chain)[0] if solved is None else solved.operations)
            rows = rows[rows[:, 0] != PREFETCH]
            for hurry in (np.inf, 1.0):
                copied = place_copies(sizes_of(chain), room, rows, 3.0, hurry)
                for change in range(9 if len(copied) else 0):
                    if change:
                        one, other = random.integers(len(copied), size=2)
                        copied[[one, other]] = copied[[other, one]]
                    if change % 3 == 1:
                        copied[one, 1] = random.integers(len(chain.steps) + 2)
                    operations = operations_of(copied)
                    for settings in ({"budget_bytes": budget, "link": link}, {"link": link}, {"budget_bytes": budget}):
                        found = simulate(chain, operations, **settings)
                        expected = reference_simulate(chain, operations, **settings)
                        assert found.violation == expected.violation
                        assert (found.peak_bytes, found.peak_operation) == (
                            expected.peak_bytes,
                            expected.peak_operation,
                        )
                        assert sorted(found.peak_owners) == sorted(expected.peak_owners)
                        assert found.releases == expected.releases
                        assert sorted(map(astuple, found.spans)) == sorted(map(astuple, expected.spans))
                        if found.fits:
                            assert (found.seconds, found.end_bytes) == (expected.seconds, expected.points[-1][1])
                            fits += 1
    assert fits > 8
