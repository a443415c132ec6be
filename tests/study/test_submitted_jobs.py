"""`trainwright submit` under a real Slurm: a study that takes longer than a job's time limit ends by itself."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from clusters import missing_for_slurm, slurm_of

import trainwright as tw

HERE = Path(__file__).parent
STEPS = 350
FILE = """
[study]
train = "within_training:train"
objectives = "min loss"
directory = "study"
seed = 5
trials = 2

[space.lr]
kind = "float"
low = 0.01
high = 0.1

[rule]
name = "FixedEpochs"
max_epochs = 3

[job]
minutes = 1
nodes = 2
workers = 1
chain = 9
environment = ["export PATH={path}:$PATH"]
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_of_several_jobs(tmp_path, torch):
    """Jobs follow each other until the trials are complete, then none is left; no step is computed twice."""
    if why := missing_for_slurm():
        pytest.skip(why)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "study.toml").write_text(FILE.format(path=Path(sys.executable).parent))
    (tmp_path / "study.pace").write_text("0.1")
    paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
    with slurm_of(tmp_path / "slurm", nodes=2) as slurm:
        own = {
            **os.environ,
            **slurm.environment,
            "PYTHONPATH": paths,
            "OMP_NUM_THREADS": "1",
            "WITHIN_STEPS": str(STEPS),
        }

        def trainwright(*words):
            command = [sys.executable, "-m", "trainwright", *words, "--json"]
            done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
            return json.loads(done.stdout.splitlines()[-1])

        trainwright("submit", "study.toml")
        deadline = time.monotonic() + 800
        seen = set()
        while True:
            time.sleep(2)
            jobs = (
                trainwright("status", "study")["jobs"] if (tmp_path / "study/ledger/study.json").exists() else {"": ""}
            )
            seen |= set(jobs.values())
            if set(jobs.values()) == {"ended"}:
                break
            assert time.monotonic() < deadline, (
                jobs,
                [path.read_text()[-500:] for path in tmp_path.glob("study/jobs/1/*.log")],
            )
    assert {"running", "queued", "ended"} <= seen
    # The last one was cancelled before it ran.
    assert 3 <= len(jobs) <= 6
    with tw.Study.open(tmp_path / "study") as study:
        assert [trial.status for trial in study.trials] == ["complete", "complete"]
        assert max(len(trial.leases) for trial in study.trials) >= 2
        assert not any(trial.blamed_losses for trial in study.trials)
    computed = Counter(tuple(line.split()[:3]) for line in (tmp_path / "study.log").read_text().splitlines())
    assert len(computed) == 2 * 3 * STEPS
    assert max(computed.values()) == 1
