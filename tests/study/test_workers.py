"""Workers of a team: they share a budget exactly, take over from the dead, and are refused when they differ."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import small_study
from clusters import missing_for_slurm, slurm_of
from scripts import Watched, check_study, log_of, running, wait_until

import trainwright as tw
from trainwright.errors import LedgerError, StudyError
from trainwright.ledger import DirectoryLedger, Writer, facts

MEMBER = Path(__file__).with_name("team_member.py")
EXAMPLES = Path(__file__).parents[2] / "examples"
SPACE = small_study.SPACE
HERE = tw.Local(workers=0)
pytestmark = pytest.mark.timeout(3000)


def make(directory, **settings):
    return tw.Study(SPACE, objectives="min loss", directory=directory, seed=5, **settings)


def train(trial):
    for epoch in trial.epochs(2):
        trial.report(loss=trial.params["lr"] / epoch)


def other(trial):
    return trial.params["lr"]


@contextlib.contextmanager
def team(directory, count, *arguments):
    """Run so many workers; end them in the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running(directory, *arguments, script=MEMBER)) for _ in range(count)]


def end_of(workers):
    for worker in workers:
        _, err = worker.communicate(timeout=300)
        assert worker.returncode == 0, err.decode()


# Together.


def test_three_workers_share_one_budget(tmp_path):
    with team(tmp_path / "study", 3, 12, 2) as workers:
        end_of(workers)
    study = check_study(tmp_path / "study", 12)
    slots = {trial.leases[1].slot.partition(":")[0] for trial in study.trials}
    assert slots <= {"0", "1", "2"}
    assert len(study.state.writers) == 3
    assert all(writer.left for writer in study.state.writers.values())


LATE_NEWS = """
import os, sys
import trainwright as tw
study = tw.Study.open(sys.argv[1])
study.tell({"lr": 0.05}, loss=1.0)
print("one", flush=True)
sys.stdin.readline()
study.tell({"lr": 0.02}, loss=2.0)
os._exit(0)
"""


def test_all_that_a_dead_worker_wrote_is_read_before_it_is_taken_over(tmp_path):
    """A reader that is behind finds its process gone: what it finished meanwhile is not done again."""
    study = make(tmp_path / "study")
    python = [sys.executable, "-c", LATE_NEWS, str(tmp_path / "study")]
    with subprocess.Popen(python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "one\n"
        study.refresh()
        other.communicate("go on\n")
    assert study.ask().number == 2
    assert study.state.results == 2


def test_each_slot_has_its_own_exploration(tmp_path):
    kappas = set()
    with make(tmp_path / "study", searcher=tw.ForestSearcher(initial=1, kappa_final=1.96)) as study:
        for rank in (0, 1):
            tw.Worker(where=study, train=train, engine=HERE, rank=rank).run(trials=3 + 2 * rank, progress=False)
        kappas = [trial.origin["kappa"] for trial in study.trials if "kappa" in trial.origin]
    assert len(set(kappas)) == 2


def test_a_worker_needs_the_address_only(tmp_path):
    """What to run, how long and under which rule was noted by who ran the study before."""
    with make(tmp_path / "study") as study:
        study.run(train, trials=3, scheduler=tw.ASHA(max_epochs=2), engine=HERE, progress=False)
    assert tw.Worker(where=tmp_path / "study", engine=HERE).run(progress=False) == 0
    assert tw.Worker(where=tmp_path / "study", engine=HERE).run(trials=5, progress=False) == 2
    with tw.Study.open(tmp_path / "study") as study:
        assert study.state.results == 5
        assert all(trial.epoch <= 2 for trial in study.trials)


def test_it_counts_its_own_results(tmp_path):
    with make(tmp_path / "study") as study:
        assert tw.Worker(where=study, train=train, engine=HERE).run(trials=2, progress=False) == 2
    with make(tmp_path / "study") as study:
        assert tw.Worker(where=study, train=train, engine=HERE).run(trials=5, progress=False) == 3


# Faults.


@pytest.mark.parametrize(("size", "kills", "trials"), [(3, 3, 10), pytest.param(16, 200, 400, marks=pytest.mark.slow)])
def test_killed_workers_lose_nothing(tmp_path, size, kills, trials):
    """Kill -9 of random workers, each replaced by a new one: no result lost, none counted twice, the budget exact."""
    generator = random.Random(size)
    directory = tmp_path / "study"
    watched = Watched(directory)
    arguments = (trials, 2)
    with contextlib.ExitStack() as stack:
        start = lambda: stack.enter_context(running(directory, *arguments, script=MEMBER))  # noqa: E731
        alive = [start() for _ in range(size)]
        for _ in range(kills):
            lines = len(log_of(directory)) + generator.choice([0, 1, 2])
            wait_until(lambda: len(log_of(directory)) >= lines or all(w.poll() is not None for w in alive))  # noqa: B023
            time.sleep(generator.uniform(0.0, 0.2))
            victim = generator.choice(alive)
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            alive[alive.index(victim)] = start()
            if generator.random() < 0.1:
                watched.look()
        end_of(alive)
    watched.look()
    check_study(directory, trials, checkpoints=False)


@pytest.mark.slow
def test_a_dead_workers_trial_goes_on_from_its_checkpoint(tmp_path, torch):
    directory = tmp_path / "study"
    with team(directory, 1, 1, 60, "torch") as (first,):
        wait_until(lambda: len(log_of(directory)) >= 4)
        first.send_signal(signal.SIGKILL)
        first.wait()
    with team(directory, 1, 1, 60, "torch") as (second,):
        end_of([second])
    study = check_study(directory, 1)
    assert sorted(study.trials[0].leases) == [1, 2]
    assert study.trials[0].leases[1].lost
    assert study.trials[0].leases[2].resumed_epoch >= 3


def test_a_worker_that_is_told_to_leave_ends_its_epoch(tmp_path, torch):
    """SIGTERM: the trial is paused after its epoch, and whoever comes goes on from there."""
    directory = tmp_path / "study"
    with team(directory, 1, 1, 60, "torch", "pool") as (first,):
        wait_until(lambda: len(log_of(directory)) >= 4)
        first.send_signal(signal.SIGINT)
        first.wait(timeout=60)
    with make(directory) as study:
        assert study.state.counts["paused"] == 1
        assert not study.trials[0].leases[1].lost
        begun = max(line.epoch for line in log_of(directory))
        assert study.trials[0].epoch == begun  # the epoch that was running has been reported
    with team(directory, 1, 1, 60, "torch") as (second,):
        end_of([second])
    check_study(directory, 1)


def interrupted(trial):
    raise KeyboardInterrupt


def test_an_interrupted_trial_in_the_workers_own_process_is_not_waited_for(tmp_path):
    with make(tmp_path / "study") as study:
        with pytest.raises(KeyboardInterrupt):
            tw.Worker(where=study, train=interrupted, engine=HERE, grace_seconds=1e6).run(trials=1, progress=False)
        assert study.state.counts["paused"] == 1


def elsewhere(study):
    """Return a writer on a host of its own, as another worker of the study."""
    ledger = DirectoryLedger(study.directory / "ledger")
    ledger.append([facts.joined(Writer(host="elsewhere", boot="b", pid=1, process_start="1"), session=1)])
    return ledger


def test_a_worker_that_comes_back_after_its_lease_gives_way(tmp_path):
    """It was stopped for so long that another has its trial: it ends its run, and the other's result counts."""
    with make(tmp_path / "study") as study:
        successor = elsewhere(study)

        def stopped_for_long(trial):
            for epoch in trial.epochs(3):
                if epoch == 2:
                    successor.append([facts.lost(trial.number, 1, why="silent", blame=False)])
                    successor.append([facts.started(trial.number, 2, slot="0", devices=[], resumed_epoch=1)])
                trial.report(loss=float(epoch))
            pytest.fail("it was told to end")

        def finish(trial):
            successor.append(
                [facts.finished(0, 2, reason="completed", values={"loss": 0.5}, wall_seconds=1.0), facts.left()]
            )

        with pytest.MonkeyPatch.context() as patch:
            # Others' records are read at each report, however slow the disk is.
            patch.setattr("trainwright.ledger.reader._SELDOM_SECONDS", 0.0)
            await_news = "trainwright.study.driver.driver.Driver._await_news"
            patch.setattr(await_news, lambda self: (finish(0), self.log.refresh()))
            ours = tw.Worker(where=study, train=stopped_for_long, engine=HERE).run(trials=1, progress=False)
        assert ours == 0
        assert study.trials[0].values == {"loss": 0.5}
        assert study.trials[0].leases[1].end.reason == "cancelled"
        assert study.state.results == 1


def test_a_late_result_is_taken_once(tmp_path):
    """It came back with the whole result before its successor had one: that counts, and the successor gives way."""
    with make(tmp_path / "study") as study:
        zombie = elsewhere(study)
        result = facts.finished(0, 1, reason="completed", values={"loss": 0.25}, wall_seconds=1.0)
        zombie.claim("number/0/0", zombie.writer)
        params = {"lr": 0.01}
        key = study.space.configuration_of(params).key
        zombie.append([facts.proposed(0, params=params, key=key, origin={}, seen=0, seen_hash="")])
        zombie.append([facts.started(0, 1, slot="0", devices=[], resumed_epoch=0)])
        zombie.append([facts.lost(0, 1, why="silent", blame=False)])

        def successor(trial):
            for epoch in trial.epochs(3):
                if epoch == 2:
                    zombie.append([result])
                trial.report(loss=9.0)
            pytest.fail("it was told to end")

        with pytest.MonkeyPatch.context() as patch:
            # Others' records are read at each report, however slow the disk is.
            patch.setattr("trainwright.ledger.reader._SELDOM_SECONDS", 0.0)
            tw.Worker(where=study, train=successor, engine=HERE).run(trials=1, progress=False)
        assert study.state.results == 1
        assert study.trials[0].values == {"loss": 0.25}
        assert sorted(study.trials[0].leases) == [1, 2]


def test_a_clock_that_jumps_harms_nobody(tmp_path, monkeypatch):
    """Times of records are shown, never compared: an hour forth and back in mid-run loses no trial."""
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + 3600.0 * (next(calls) % 3 - 1))
    params = {"lr": 0.01}
    with make(tmp_path / "study") as study:
        rest, key = elsewhere(study), study.space.configuration_of(params).key
        rest.claim("number/1/0", rest.writer)
        rest.append([facts.proposed(1, params=params, key=key, origin={}, seen=0, seen_hash="")])
        rest.append([facts.started(1, 1, slot="0", devices=[], resumed_epoch=0)])

        def last_of_all(trial):
            train(trial)
            if trial.number == 3:
                rest.append([facts.finished(1, 1, reason="completed", values={"loss": 0.5}, wall_seconds=1.0)])

        tw.Worker(where=study, train=last_of_all, engine=HERE).run(trials=4, progress=False)
        assert study.state.counts["lost"] == 0
        assert all(len(trial.leases) == 1 for trial in study.trials)
        assert study.state.results == 4


def test_a_ledger_that_vanishes_is_one_clear_error(tmp_path):
    def vanishing(trial):
        shutil.rmtree(tmp_path / "study")
        return 1.0

    study = make(tmp_path / "study")
    with pytest.raises(LedgerError, match=r"cannot (read|write|claim) .*study.*"):
        tw.Worker(where=study, train=vanishing, engine=HERE).run(trials=3, progress=False)


# Refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": other}, r"trials run test_workers:train .* would run test_workers:other .*--other-job"),
        ({"scheduler": tw.ASHA(max_epochs=9)}, r"runs under rule .*FixedEpochs.* would under .*ASHA.*--other-job"),
    ],
)
def test_a_worker_that_would_run_something_else(tmp_path, settings, message):
    with make(tmp_path / "study") as study:
        study.run(train, trials=1, engine=HERE, progress=False)
        with pytest.raises(StudyError, match=message):
            tw.Worker(where=study, engine=HERE, **settings).run(trials=2, progress=False)
        tw.Worker(where=study, engine=HERE, other_job=True, **settings).run(trials=2, progress=False)
        assert study.state.results == 2


def test_a_worker_without_work_to_know_of(tmp_path):
    with make(tmp_path / "study") as study:
        with pytest.raises(StudyError, match="nobody has run this study yet; say what to run: --train module:function"):
            tw.Worker(where=study, engine=HERE).run(trials=2, progress=False)
        with pytest.raises(StudyError, match="the study has no budget yet; give --trials"):
            tw.Worker(where=study, train=train, engine=HERE).run(progress=False)
    with pytest.raises(StudyError, match="no study in"):
        tw.Worker(where=tmp_path / "nothing").run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"rank": -1}, "rank: got -1; allowed"), ({"grace_seconds": float("nan")}, "grace_seconds: got nan; allowed")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(StudyError, match=message):
        tw.Worker(where="x", **settings)


# Started by anything.


def worker(directory, *arguments, launcher=()):
    """Run the command in another process that knows nothing of this one's modules; return its status and words."""
    environment = {**os.environ, "PYTHONPATH": str(MEMBER.parents[2] / "src")}
    command = [*launcher, sys.executable, "-m", "trainwright", "worker", str(directory), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=directory.parent)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def begun(tmp_path):
    """Return the directory of a study of which one trial was run."""
    with make(tmp_path / "study") as study:
        study.run(small_study.train, trials=1, scheduler=tw.FixedEpochs(2), engine=HERE, progress=False)
    return tmp_path / "study"


def test_the_command(begun):
    status, out, err = worker(begun, "--trials", "3", "--workers", "0", "--json")
    assert status == 0, err
    assert out.splitlines()[-1] == '{"ours": 2, "results": 3, "trials": 3}'
    assert f"this worker: 2 of 3 results in {begun}" in out
    assert "[3/3] trial 2 complete after 2 epochs" in err


def test_the_command_refuses(begun):
    status, out, err = worker(begun, "--train", "json:dumps")
    assert (status, out) == (2, "")
    assert err.startswith("trainwright: worker: the study's trials run small_study:train (source ")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun; install openmpi-bin or mpich")
def test_under_mpirun(begun):
    root = ("--allow-run-as-root", "--oversubscribe") if "Open MPI" in _version("mpirun") else ()
    status, _, err = worker(begun, "--trials", "12", "--workers", "0", launcher=("mpirun", "-n", "4", *root))
    assert status == 0, err
    study = check_study(begun, 12, checkpoints=False)
    slots = {lease.slot for trial in study.trials for lease in trial.leases.values()}
    assert len(slots) > 2
    assert slots <= {"0", "0:0", "1:0", "2:0", "3:0"}  # the ranks


def _version(command):
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_under_srun(begun, slurm):
    status, _, err = worker(begun, "--trials", "12", "--workers", "0", launcher=("srun", "-n", "2"))
    assert status == 0, err
    check_study(begun, 12, checkpoints=False)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="no Ray: pip install ray, or `make test-all`")
def test_as_ray_tasks(tmp_path):
    """The example; one of its tasks is killed in the middle of a trial, and started again by Ray."""
    for name in ("workers.py", "launchers/workers_ray.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    directory = tmp_path / "runs/ray"
    environment = {**os.environ, "PYTHONPATH": str(MEMBER.parents[2] / "src")}
    command = [sys.executable, "workers_ray.py"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as script:
        os.kill(wait_until(lambda: _busy(directory)), signal.SIGKILL)
        _, err = script.communicate(timeout=300)
    assert script.returncode == 0, err
    study = check_study(directory, 12, checkpoints=False)
    assert any(lease.lost for trial in study.trials for lease in trial.leases.values())
    assert len(study.state.writers) > 3  # who made it, two tasks, and the one that was started again


def _busy(directory):
    """Return a process that holds a running trial, if there is one."""
    try:
        study = tw.Study.open(directory)
    except StudyError:
        return None
    return next((study.state.writers[t.holder].pid for t in study.trials if t.status == "running"), None)


@pytest.fixture
def slurm(tmp_path):
    """Start Slurm on this one node."""
    if why := missing_for_slurm():
        pytest.skip(why)
    with slurm_of(tmp_path) as slurm, pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        yield
