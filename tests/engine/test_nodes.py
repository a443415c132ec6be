"""Gangs: tasks of a launcher, one on each node, that share their trials; here all nodes are this machine."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from gang_training import run

import trainwright as tw
from trainwright.engine.nodes.engine import GangPlace, Nodes
from trainwright.engine.nodes.member import COMMAND, place_token, publish_meeting
from trainwright.engine.protocol import node_shapes
from trainwright.errors import EngineError
from trainwright.testing import EngineConformance

pytest.importorskip("torch")
HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE), str(HERE.parent / "study")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


def start_member(meeting, place, slots=1):
    return subprocess.Popen([*COMMAND, str(meeting), str(place), str(slots), "60"], env=ENVIRONMENT)


@contextmanager
def gang(folder, nodes=2, slots=1, **settings):
    """Yield the engine of a gang, and its members but the driver's own."""
    meeting = folder / "gang.json"
    members = [start_member(meeting, place, slots) for place in range(1, nodes)]
    try:
        yield Nodes(meeting=meeting, nodes=nodes, workers=slots, start_seconds=60.0, **settings), members
    finally:
        for member in members:
            member.kill()
            member.wait()


AGAIN = """
import sys
from pathlib import Path
from trainwright.engine.nodes.member import serve
while True:
    serve(Path(sys.argv[1]), 1, slots=1, start_seconds=600.0, home=".")
"""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """Return the file by which a member finds every engine that opens."""
    path = tmp_path_factory.mktemp("gang") / "gang.json"
    member = subprocess.Popen([sys.executable, "-c", AGAIN, str(path)], env=ENVIRONMENT)
    yield path
    member.kill()
    member.wait()


class TestGang(EngineConformance):
    """A gang of two nodes is an engine like any other."""

    @pytest.fixture(autouse=True)
    def _meets(self, meeting):
        self.meeting = meeting

    def make_engine(self):
        return Nodes(meeting=self.meeting, nodes=2, workers=1, start_seconds=60.0)


@pytest.mark.parametrize(
    ("nodes", "slots", "devices"),
    [(2, 1, 2), pytest.param(2, 2, 4, marks=pytest.mark.slow), pytest.param(3, 1, 3, marks=pytest.mark.slow)],
)
def test_a_trial_over_several_nodes(tmp_path, nodes, slots, devices):
    """Its ranks are one on each slot, and find each other."""
    directory = tmp_path / "study"
    Path(f"{directory}.go").touch()
    with gang(tmp_path, nodes, slots) as (engine, members):
        [trial] = run(directory, engine, devices)
        assert all(member.wait(30) == 0 for member in members), "they end with their driver"
    assert trial.values == {"loss": 1 / 3, "total": devices * (devices + 1) / 2, "world": devices}
    names = trial.leases[1].devices
    assert len(set(names)) == devices
    assert not (tmp_path / "gang.json").exists()


def pid_of(directory, rank, epoch):
    path = Path(f"{directory}.begun-{rank}-{epoch}")
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(path.read_text())


# That a node is lost, a gang of the command meets below.
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a rank", "its node"])
def test_a_rank_or_its_node_dies(tmp_path, whole):
    """A rank that is killed begins again; a node that is lost takes its slot along, and no blame falls on the trial."""
    directory = tmp_path / "study"
    with gang(tmp_path) as (engine, [member]):
        script = (
            "import sys; from pathlib import Path; from gang_training import *; "
            "engine = Nodes(meeting=Path(sys.argv[2]), nodes=2, workers=1); "
            "[trial] = run(sys.argv[1], engine, 2)"
        )
        words = [str(directory), str(engine.meeting)]
        driver = subprocess.Popen([sys.executable, "-c", script, *words], env=ENVIRONMENT, stderr=subprocess.PIPE)
        second = pid_of(directory, 1, 2)
        if whole:
            member.send_signal(signal.SIGKILL)
        else:
            os.kill(second, signal.SIGKILL)
        Path(f"{directory}.go").touch()
        said = driver.communicate(timeout=90)[1].decode()
    with tw.Study.open(directory) as study:
        [trial] = study.trials
    if whole:
        # Of two slots one is left, too few for a trial of two.
        assert driver.returncode != 0
        assert "1 of its 2 slots are gone" in said
        assert (trial.blamed_losses, trial.leases[1].lost) == (0, True)
        assert "is gone" in trial.leases[1].why
    else:
        assert driver.returncode == 0, said
        assert (trial.status, len(trial.leases)) == ("complete", 2)
        assert "rank 1: the worker process was killed by SIGKILL" in trial.leases[1].why


def test_members_end_with_their_driver(tmp_path):
    """A driver that is killed leaves no process: neither members nor workers."""
    directory = tmp_path / "study"
    with gang(tmp_path) as (engine, [member]):
        script = (
            "import sys; from pathlib import Path; from gang_training import *; "
            "run(sys.argv[1], Nodes(meeting=Path(sys.argv[2]), nodes=2, workers=1), 2)"
        )
        words = [str(directory), str(engine.meeting)]
        driver = subprocess.Popen([sys.executable, "-c", script, *words], env=ENVIRONMENT)
        pids = [pid_of(directory, rank, 2) for rank in range(2)]
        driver.kill()
        driver.wait()
        assert member.wait(30) == 0
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_member_that_never_comes(tmp_path):
    """Its slots are gone, and the others work."""
    Path(f"{tmp_path / 'study'}.go").touch()
    engine = Nodes(meeting=tmp_path / "gang.json", nodes=2, workers=1, start_seconds=3.0)
    [trial] = run(tmp_path / "study", engine, 1)
    assert trial.status == "complete"
    assert engine.gone == {1}


def test_nobody_else_is_let_in(tmp_path):
    """The file with the secret is for its owner alone; a member with another secret is missed."""
    publish_meeting(tmp_path / "gang.json", ["127.0.0.1"], 1, "secret")
    assert (tmp_path / "gang.json").stat().st_mode & 0o777 == 0o600
    assert place_token("secret", 1) != place_token("secret", 2) != place_token("other", 2)


SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}


def test_places(tmp_path):
    """Consecutive tasks are one gang; the first of them drives it."""
    place = GangPlace.of(2, tmp_path, SRUN)
    assert (place.place, place.drives, place.meeting) == (1, False, tmp_path / "gangs/17-0-1.json")
    assert GangPlace.of(2, tmp_path, {**SRUN, "SLURM_PROCID": "2"}).drives


@pytest.mark.parametrize(
    ("size", "environment", "sentence"),
    [
        (2, {}, "goes with a launcher that numbers its tasks"),
        (8, SRUN, "--gang 8 does not divide the 4 tasks of the launcher"),
        (3, SRUN, "--gang 3 does not divide the 4 tasks of the launcher"),
        (0, SRUN, "--gang: got 0; allowed: a whole number >= 1"),
    ],
)
def test_gangs_that_cannot_be(tmp_path, size, environment, sentence):
    with pytest.raises(EngineError, match=sentence):
        GangPlace.of(size, tmp_path, environment)


def test_workers_of_a_launcher(tmp_path):
    """`trainwright worker --gang 2`, started twice as srun does, trains a trial on two nodes."""
    directory = tmp_path / "study"
    Path(f"{directory}.go").touch()
    (tmp_path / "study.toml").write_text(
        f'[study]\ntrain = "gang_training:train_together"\nobjectives = "min loss"\ndirectory = "{directory}"\n'
        'trials = 2\n[space.x]\nkind = "float"\nlow = 0\nhigh = 1\n[rule]\nname = "FixedEpochs"\nmax_epochs = 3\n'
        '[policy]\nname = "Fixed"\ndevices = 2\n'
    )
    tasks = []
    for number in range(2):
        launcher = {**SRUN, "SLURM_NTASKS": "2", "SLURM_PROCID": str(number)}
        command = [sys.executable, "-m", "trainwright", "worker", str(tmp_path / "study.toml"), "--gang", "2"]
        tasks.append(subprocess.Popen([*command, "--workers", "1"], env={**ENVIRONMENT, **launcher}))
    assert [task.wait(90) for task in tasks] == [0, 0]
    with tw.Study.open(directory) as study:
        assert [trial.values["world"] for trial in study.trials] == [2, 2]


def test_a_gang_that_has_lost_a_node_is_interrupted(tmp_path):
    """Its exit status is that of a worker to start again: nothing is wrong with the study."""
    directory = tmp_path / "study"
    (tmp_path / "study.toml").write_text(
        f'[study]\ntrain = "gang_training:train_together"\nobjectives = "min loss"\ndirectory = "{directory}"\n'
        'trials = 1\n[space.x]\nkind = "float"\nlow = 0\nhigh = 1\n[rule]\nname = "FixedEpochs"\nmax_epochs = 3\n'
        '[policy]\nname = "Fixed"\ndevices = 2\n'
    )
    tasks = []
    for number in range(2):
        launcher = {**SRUN, "SLURM_NTASKS": "2", "SLURM_PROCID": str(number)}
        command = [sys.executable, "-m", "trainwright", "worker", str(tmp_path / "study.toml"), "--gang", "2"]
        tasks.append(subprocess.Popen([*command, "--workers", "1"], env={**ENVIRONMENT, **launcher}))
    pid_of(directory, 1, 2)
    tasks[1].kill()
    tasks[1].wait()
    Path(f"{directory}.go").touch()
    assert tasks[0].wait(90) == 130
    with tw.Study.open(directory) as study:
        [trial] = study.trials
        assert (trial.blamed_losses, trial.status.ended) == (0, False)


@pytest.mark.slow
def test_nodes_of_different_size_and_speed_are_used_whole(tmp_path):
    """A node of two slots and one of a single slow slot: all three are there, and the slow one is used last."""
    meeting = tmp_path / "gang.json"
    member = start_member(meeting, 1, 1)
    try:
        engine = Nodes(meeting=meeting, nodes=2, workers=2, start_seconds=60.0, speeds={"*/cpu:2": 0.5})
        assert (engine.slots, engine.slots_per_node, engine.node_sizes) == (3, 2, (2, 1))
        assert [node.speed for node in node_shapes(engine)] == [1.0, 0.5]
        study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path / "study", seed=0)
        study.run(three_epochs, trials=5, scheduler=tw.FixedEpochs(3), engine=engine, progress=False)
        used = [lease.devices[0].rpartition(":")[2] for trial in study.trials for lease in trial.leases.values()]
        assert sorted(used[:3]) == ["0", "1", "2"]
        assert used[2] == "2"
    finally:
        member.kill()
        member.wait()


def three_epochs(trial):
    """Sleep and report."""
    for epoch in trial.epochs():
        time.sleep(0.2)
        trial.report(loss=1 / epoch)
