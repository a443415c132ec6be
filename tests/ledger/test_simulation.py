"""The simulation keeps every promise on some histories, repeats them, and finds bugs that are planted in its seams."""

import json
import subprocess
import sys

import pytest
from planted_bugs import PLANTED

from trainwright.testing import simulation
from trainwright.testing.simulated_machine import FAULTS

pytestmark = pytest.mark.filterwarnings("ignore:the ledger cannot be read as a whole")


@pytest.mark.parametrize("seed", [0, 1])
def test_promises_are_kept(seed):
    """Nothing is lost, nothing counted twice, and the budget is exact, whatever strikes."""
    history = simulation.simulate_history(seed, simulation.plan_faults(seed))
    assert len(history.happened) >= 2
    assert history.broken == []


def test_a_seed_is_one_history():
    """The same faults strike, after the same number of operations: in another process, too."""
    code = (
        "import json; from trainwright.testing.simulation import plan_faults, simulate_history\n"
        "h = simulate_history(3, plan_faults(3)); print(json.dumps([h.operations, sorted(h.happened.items())]))"
    )
    environment = {"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


FOUND_AT = {
    "no_sync": (0, 2, 3),
    "shared_claims": (4, 6, 7),
    "counted_again": (0, 1, 2),
    "budget_off_by_one": (1, 4, 5),
    "state_not_restored": (0, 1, 2),
    "checkpoints_unverified": (2, 12, 33),
}
"""Seeds of which one finds a bug, with any version of Python; all seeds are tried by the slow test."""


@pytest.mark.parametrize("bug", FOUND_AT)
def test_a_planted_bug_is_found(bug, monkeypatch):
    simulation.simulate_history(0, {})
    PLANTED[bug](monkeypatch)
    assert any(simulation.simulate_history(seed, simulation.plan_faults(seed)).broken for seed in FOUND_AT[bug])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", PLANTED)
def test_every_planted_bug_is_found_within_six_hundred_histories(bug, monkeypatch):
    simulation.simulate_history(0, {})
    PLANTED[bug](monkeypatch)
    plans = ((seed, simulation.plan_faults(seed)) for seed in range(600))
    assert any(simulation.simulate_history(seed, plan).broken for seed, plan in plans)


def test_a_failing_history_shrinks(monkeypatch):
    """Only what matters is left: here no fault at all."""
    simulation.simulate_history(0, {})
    PLANTED["budget_off_by_one"](monkeypatch)
    history = simulation.simulate_history(1, dict.fromkeys((70, 90), "stale"))
    if not history.broken:
        history = simulation.simulate_history(1, simulation.plan_faults(1))
    shrunk = simulation.shrink_faults(history)
    assert shrunk.broken
    assert len(shrunk.planned) < len(history.planned) or not shrunk.planned


def test_bad_input(capsys):
    assert simulation.main(["--seeds", "0"]) == 2
    assert "allowed: at least 1" in capsys.readouterr().out


def test_faults_are_of_every_kind():
    """Within a hundred seeds each is planned."""
    assert {fault for seed in range(100) for fault in simulation.plan_faults(seed).values()} == {*FAULTS}
