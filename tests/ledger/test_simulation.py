"""The simulation keeps every promise on some histories, repeats them, and finds bugs that are planted in its seams."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from planted_bugs import PLANTED

from trainwright.errors import InputError
from trainwright.testing import simulation
from trainwright.testing.simulated_history import plan_faults, shrink_faults, simulate_history
from trainwright.testing.simulated_machine import FAULTS

pytestmark = pytest.mark.filterwarnings("ignore:the ledger cannot be read as a whole")


@pytest.mark.parametrize("seed", [0, 1])
def test_promises_are_kept(seed):
    """Nothing is lost, nothing counted twice, and the budget is exact, whatever strikes."""
    history = simulate_history(seed, plan_faults(seed))
    assert len(history.happened) >= 10
    assert history.broken == []


@pytest.mark.parametrize(
    "history",
    [
        # A trial failed after it was taken over; then came the result of a driver who had stood still.
        "21861:clock@99,stale@202,stop@233,space@294,rot@310,stop@319,space@320",
        # One worker had read a proposal, and gave it up; another met its damaged line, and trained without.
        "29806:power@79,link@101,kill@114,write@154,sync@276,sync@297,link@299,write@301,sync@318,clock@323,rot@329",
    ],
)
def test_what_once_broke_a_promise(history):
    assert simulation.replay_history(f"{simulation.SIMULATOR}:{history}").broken == []


def test_a_seed_is_one_history():
    """The same faults strike, after the same number of operations: in another process, too."""
    code = (
        "import json; from trainwright.testing.simulated_history import plan_faults, simulate_history\n"
        "h = simulate_history(3, plan_faults(3)); print(json.dumps([h.operations, sorted(h.happened.items())]))"
    )
    environment = {"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


OFTEN = ("same_file_after_failure", "shared_claims", "counted_again", "budget_off_by_one", "state_not_restored")
"""Bugs that a few histories find; all are tried by the slow test."""


@pytest.mark.parametrize("bug", OFTEN)
def test_a_planted_bug_is_found(bug, monkeypatch):
    simulate_history(0, {})
    PLANTED[bug](monkeypatch)
    assert any(simulate_history(seed, plan_faults(seed)).broken for seed in range(40))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", PLANTED)
def test_every_planted_bug_is_found_within_ten_thousand_histories(bug, monkeypatch):
    simulate_history(0, {})
    PLANTED[bug](monkeypatch)
    plans = ((seed, plan_faults(seed)) for seed in range(10_000))
    assert any(simulate_history(seed, plan).broken for seed, plan in plans)


def test_a_failing_history_shrinks(monkeypatch):
    """What matters is left: here fewer faults, or none."""
    simulate_history(0, {})
    PLANTED["budget_off_by_one"](monkeypatch)
    histories = (simulate_history(seed, plan_faults(seed)) for seed in range(40))
    history = next(each for each in histories if each.broken)
    shrunk = shrink_faults(history)
    assert shrunk.broken
    assert len(shrunk.planned) < len(history.planned) or not shrunk.planned


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seeds", "0"], "allowed: at least 1"),
        (["--jobs", "0"], "got --jobs 0; allowed: at least 1"),
        (["--replay", "kill at 70"], "allowed: SIMULATOR:SEED:FAULT@OPERATION"),
        (["--replay", "0:0:fire@70"], "with faults of kill, power"),
        (["--replay", "00000000:1:kill@70"], "the history is of simulator 00000000, this is"),
        (["--replay", f"{simulation.SIMULATOR}:1:kill@999999"], "no longer applies: kill at operation 999999"),
    ],
)
def test_bad_input(words, sentence, capsys):
    assert simulation.main(words) == 2
    assert sentence in capsys.readouterr().err


def test_a_broken_promise_is_printed_as_what_replays_it(monkeypatch, tmp_path, capsys):
    simulate_history(0, {})
    PLANTED["counted_again"](monkeypatch)
    results = tmp_path / "results.json"
    assert simulation.main(["--seeds", "2", "--results", str(results)]) == 1
    broken = json.loads(results.read_text())["broken"][0]
    assert f"--replay {broken['history']}" in capsys.readouterr().out
    assert simulation.replay_history(broken["history"]).broken
    monkeypatch.undo()
    assert simulation.main(["--replay", broken["history"]]) == 0
    assert "every promise kept" in capsys.readouterr().out


def test_an_interrupted_run_is_continued(monkeypatch, tmp_path, capsys):
    """The count goes on as if it had never stopped, and the signal waits for the history under way."""
    results, parts = tmp_path / "results.json", tmp_path / "parts.json"
    assert simulation.main(["--seeds", "3", "--results", str(results)]) == 0
    monkeypatch.setattr(simulation, "_SAVE_SECONDS", 0.0)

    def interrupted(seed, planned):
        os.kill(os.getpid(), signal.SIGINT)
        return simulate_history(seed, planned)

    monkeypatch.setattr(simulation, "simulate_history", interrupted)
    assert simulation.main(["--seeds", "3", "--results", str(parts)]) == 130
    told = capsys.readouterr().err
    assert "1 histories" in told
    assert "the same command continues" in told
    monkeypatch.undo()
    assert simulation.main(["--seeds", "3", "--results", str(parts)]) == 0
    whole, continued = (json.loads(path.read_text()) for path in (results, parts))
    assert {**continued, "seconds": 0} == {**whole, "seconds": 0}
    assert whole["histories"] == 3
    assert sum(whole["struck"].values()) == whole["faults"]


@pytest.mark.slow
def test_a_killed_run_is_continued(tmp_path):
    """Two processes simulate; after the death of all, the count continues from where it was kept."""
    results, script = tmp_path / "results.json", tmp_path / "often.py"
    script.write_text(
        "import sys\nfrom trainwright.testing import simulation\nsimulation._SAVE_SECONDS = 0.0\n"
        "if __name__ == '__main__':\n    sys.exit(simulation.main(sys.argv[1:]))\n"
    )

    def start(seeds):
        command = [sys.executable, "-W", "ignore", script, "--seeds", str(seeds), "--jobs", "2", "--results", results]
        return subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": "0"}, start_new_session=True)

    run = start(100_000)
    while not results.exists() or json.loads(results.read_text())["histories"] < 5:
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = json.loads(results.read_text())
    assert start(kept["histories"] + 3).wait() == 0
    continued = json.loads(results.read_text())
    assert continued["histories"] == kept["histories"] + 3
    assert continued["faults"] >= kept["faults"] + 30
    assert continued["of_ten_faults"] == continued["histories"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"simulator": "00000000"}, "counts seeds of simulator 00000000"),
        (None, "holds no results"),
    ],
)
def test_results_that_cannot_be_continued(change, sentence, tmp_path):
    path = tmp_path / "results.json"
    fresh = simulation._read_results(path)
    path.write_text(json.dumps(None if change is None else {**fresh, **change}))
    with pytest.raises(InputError, match=sentence):
        simulation._read_results(path)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot read the results"):
        simulation._read_results(path)


def test_faults_are_of_every_kind():
    """Within a hundred seeds each is planned."""
    assert {fault for seed in range(100) for fault in plan_faults(seed).values()} == {*FAULTS}
