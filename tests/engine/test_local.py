"""Local: processes and their reuse, limits that kill, and what each kind of end becomes."""

import ast
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import trainings

import trainwright as tw
from trainwright.engine import Died, Local, Raised, Returned
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.process.worker_process import ChildProcess, WorkerProcess, worker_environment
from trainwright.errors import EngineError
from trainwright.ledger import Status
from trainwright.signals import LAUNCHER_SIGNALS
from trainwright.testing.engine import OutcomeRecorder, run_all
from trainwright.train.assignment import Assignment

MEGABYTE = 2**20
SETTINGS = {"gpus": (), "memory_bytes": None, "fresh_process": False, "process_per_device": True}


def run(engine, *trials, directory=None, train=trainings.does, lease=1):
    """Run trials of the given parameters, one after the other, and return the handler with what came of them."""
    engine.open(train, directory)
    try:
        assignments = [
            Assignment(trial=n, lease=lease, params=params, seed=n, directory=directory and str(directory))
            for n, params in enumerate(trials)
        ]
        return run_all(engine, assignments)
    finally:
        engine.close()


def failure(handler, number=0):
    """Return the kind and sentence of a failure."""
    outcome = handler.outcomes[number]
    assert isinstance(outcome, Raised), outcome
    return outcome.failure, outcome.message


def pids(handler):
    return [int(records[0].body["metrics"]["pid"]) for _, records in sorted(handler.records.items())]


def gone(pid):
    """Wait until a process has gone: all its threads, of which the first may be a zombie while others still end."""
    deadline = time.monotonic() + 60
    while not _has_ended(Path(f"/proc/{pid}")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _has_ended(process):
    try:
        state = (process / "stat").read_text().split(") ")[1][:1]
        return state == "Z" and len(list((process / "task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


class TestProcesses:
    def test_a_slot_reuses_its_process(self):
        """The slot's next trial runs in the process of the one before, also after an exception."""
        one, two, failed, three = ({"what": what} for what in ("reports_pid", "reports_pid", "raises", "reports_pid"))
        assert len(set(pids(run(Local(), one, two, failed, three)))) == 1

    def test_fresh_process(self):
        """With fresh_process=True every trial has a process of its own, and none stays."""
        seen = pids(run(Local(fresh_process=True), *[{"what": "reports_pid"}] * 3))
        assert len(set(seen)) == 3
        assert all(gone(pid) for pid in seen)

    def test_a_killed_process_is_replaced(self):
        handler = run(Local(), {"what": "reports_pid"}, {"what": "is_killed"}, {"what": "reports_pid"})
        before, after = pids(handler)
        assert before != after

    def test_a_process_that_died_idle_is_replaced(self):
        """What happens to a process between two trials is no matter of the next one."""
        engine, handler = Local(), OutcomeRecorder()
        engine.open(trainings.does, None)
        try:
            run_all(engine, [Assignment(trial=0, lease=1, params={"what": "leaves_a_bomb"}, seed=0)], handler)
            assert gone(pids(handler)[0])
            run_all(engine, [Assignment(trial=1, lease=1, params={"what": "reports_pid"}, seed=0)], handler)
        finally:
            engine.close()
        assert isinstance(handler.outcomes[1], Returned)

    def test_workers_share_the_processors_and_see_no_gpu(self, tmp_path, monkeypatch):
        """OMP_NUM_THREADS is the slot's share; a slot without GPU sees none, whatever the driver sees."""
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        run(Local(workers=2, gpus=()), {"what": "shows_environment", "file": str(tmp_path / "seen")})
        seen = ast.literal_eval((tmp_path / "seen").read_text())
        assert seen == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": ""}

    def test_workers_keep_their_memory(self, monkeypatch):
        """Glibc holds on to what is freed, for gradients on a CPU; what the user has set counts."""
        assert worker_environment(1, "")["MALLOC_MMAP_MAX_"] == "0"
        monkeypatch.setenv("MALLOC_MMAP_MAX_", "65536")
        assert worker_environment(1, "")["MALLOC_MMAP_MAX_"] == "65536"
        assert "MALLOC_MMAP_MAX_" not in worker_environment(1, "0")

    def test_workers_take_gpus_in_turn(self, tmp_path, monkeypatch):
        """Three workers on GPUs 4 and 7: the first and third share one."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
        engine = Local(workers=3)
        files = [str(tmp_path / str(n)) for n in range(3)]
        run(engine, *({"what": "shows_environment", "file": file} for file in files))
        seen = [ast.literal_eval(Path(file).read_text())["CUDA_VISIBLE_DEVICES"] for file in files]
        assert seen == ["4", "7", "4"]
        assert engine.devices((0, 1, 2)) == ("cuda:4", "cuda:7")
        assert Local(workers=2, gpus=()).devices((1,)) == ("cpu:1",)

    def test_each_trial_has_its_log(self, tmp_path, monkeypatch):
        """Whatever is printed goes to the trial's log, also when the study's directory is relative."""
        monkeypatch.chdir(tmp_path)
        run(Local(), {"what": "prints"}, {"what": "prints"}, directory=Path("study"), lease=3)
        for number in range(2):
            lines = (tmp_path / f"study/logs/trial-{number:06d}/lease-3.log").read_text().splitlines()
            assert lines == [f"hello from trial {number}", "and from its errors", "even past Python"]

    def test_each_trial_starts_at_home(self, tmp_path, monkeypatch):
        """A trial that changes the directory does not move the next one."""
        monkeypatch.chdir(tmp_path)
        handler = run(Local(), *[{"what": "changes_directory", "home": str(tmp_path)}] * 2)
        assert all(isinstance(outcome, Returned) for outcome in handler.outcomes.values())

    def test_a_trial_draws_the_same_wherever_it_runs(self):
        """Torch is seeded for the trial that loads it as for those after, in a used process as in a fresh one."""
        first, second = run(Local(), {}, {}, train=trainings.draws_of_torch).outcomes.values()
        engine = Local()
        engine.open(trainings.draws_of_torch, None)
        try:
            alone = run_all(engine, [Assignment(trial=1, lease=1, params={}, seed=1)]).outcomes[1]
        finally:
            engine.close()
        assert alone.value == second.value
        assert first.value != second.value

    def test_the_model_before_is_gone(self):
        """A process that is reused does not gather the models of its trials."""
        handler = run(Local(), *[{"what": "makes_a_model"}] * 3)
        assert [handler.outcomes[number].value for number in range(3)] == [0.0, 0.0, 0.0]


class TestSignals:
    """Of a launcher, which sends them to every process."""

    def test_a_trial_and_its_children_are_deaf(self):
        """But for SIGTERM, by which a trial ends its children as ever."""
        handler = run(Local(), {"what": "is_signalled"})
        [record] = handler.records[0]
        metrics = record.body["metrics"]
        assert (metrics["living"], metrics["forked"], metrics["child"]) == (2, -signal.SIGTERM, -signal.SIGTERM)

    def test_from_the_first_instruction_on(self):
        """Those that come while a process starts are lost, not held against it later."""
        ours, theirs = socket.socketpair()
        worker = ChildProcess({}, theirs)
        try:
            for number in LAUNCHER_SIGNALS:
                os.kill(worker._process.pid, number)
            ours.close()  # which ends it, once it is there
            assert worker._process.wait(60) == 0
        finally:
            worker.close(kill=True)

    @pytest.mark.parametrize("handles", [False, True], ids=["no handler", "its own handler"])
    def test_a_condemned_trial_ends_within_its_grace(self, tmp_path, handles):
        """At once, or by what its own handler does; nobody waits for the end of the grace."""
        params = {"what": "waits_for_condemnation", **({"file": str(tmp_path / "bye")} if handles else {})}
        engine = Local(1, **{**SETTINGS, "timeout_seconds": 10_000.0, "grace_seconds": 10_000.0})

        class Impatient(OutcomeRecorder):
            def facts(self, trial, records):
                engine.timeout_seconds = 0.01
                return super().facts(trial, records)

        handler = Impatient()
        engine.open(trainings.does, None)
        try:
            engine.launch(Assignment(trial=0, lease=1, params=params, seed=0), (0,))
            while not handler.outcomes:
                engine.poll(handler, 0.5)
        finally:
            engine.close()
        assert failure(handler) == ("timeout", "it ran longer than timeout_seconds=0.01")
        assert (tmp_path / "bye").exists() == handles


class TestLimits:
    def test_timeout_kills_what_ignores_it(self, tmp_path):
        """A trial that ignores SIGTERM is killed after the grace, with its children that ignore it too."""
        file = tmp_path / "pids"
        engine = Local(timeout_seconds=3, grace_seconds=0.5)
        handler = run(engine, {"what": "hangs", "file": str(file)}, {"what": "reports_pid"})
        assert failure(handler) == ("timeout", "it ran longer than timeout_seconds=3")
        assert all(gone(int(pid)) for pid in file.read_text().split())
        assert isinstance(handler.outcomes[1], Returned)

    @pytest.mark.parametrize("what", ["hogs", "child_hogs"])
    def test_memory_limit_kills(self, what):
        """The resident memory of a trial and its children together is what counts."""
        handler = run(Local(memory_bytes=600 * MEGABYTE), {"what": what, "bytes": 700 * MEGABYTE})
        kind, message = failure(handler)
        assert kind == "out_of_memory"
        assert message.startswith("it held ")
        assert message.endswith("bytes of memory, above memory_bytes=629,145,600")


class TestEnds:
    @pytest.mark.parametrize(
        ("what", "kind", "sentence"),
        [
            ("raises", "exception", "ValueError: a first line"),
            ("raises_unprintable", "exception", "Unprintable"),
            ("raises_memory_error", "out_of_memory", "MemoryError: too large"),
            ("exits", "exception", "SystemExit: 3"),
            ("exits_hard", "killed", "the worker process ended by itself with exit status 3"),
            ("closes_all_files", "killed", "the worker process ended by itself with exit status 1"),
            ("crashes", "killed", "the worker process crashed with SIGSEGV"),
        ],
    )
    def test_failures(self, what, kind, sentence):
        """Each is a failure of the trial with its sentence, and the next trial runs."""
        handler = run(Local(), {"what": what}, {"what": "reports_pid"})
        assert failure(handler) == (kind, sentence)
        assert isinstance(handler.outcomes[1], Returned)
        if kind == "exception":
            assert f"in _{what}" in handler.outcomes[0].traceback

    def test_results_of_other_libraries_are_numbers(self):
        """A tensor comes back as a float: the driver needs no torch to read it."""
        outcome = run(Local(), {"what": "returns_tensor"}).outcomes[0]
        assert outcome.value == {"val_loss": 0.25, "count": 3.0}
        assert all(type(value) is float for value in outcome.value.values())

    def test_what_cannot_be_sent_is_named(self):
        kind, message = failure(run(Local(), {"what": "returns_socket"}))
        assert kind == "bad_objective"
        assert message.startswith("train returned <socket.")  # cut short
        assert message.endswith("; return a number, a dict of numbers, or None")

    @pytest.mark.parametrize("what", ["is_killed", "is_killed_with_a_child"])
    def test_a_kill_from_outside_is_no_failure(self, what):
        """It is noticed even if a forked child holds the line to the driver open."""
        assert run(Local(), {"what": what}).outcomes[0] == Died(
            why="the worker process was killed by SIGKILL", seconds=pytest.approx(0, abs=60)
        )

    def test_a_report_after_the_end_says_so(self):
        handler = run(Local(), {"what": "reports_after_the_end"}, {"what": "reports_after_the_end"})
        assert failure(handler, 1)[1] == "trial 0 has ended; report before the training function returns"

    def test_a_study_inside_a_trial(self):
        """A training function may search, in its own process."""
        assert 0 <= run(Local(), {"what": "runs_a_study"}).outcomes[0].value <= 1


class TestStudies:
    def study(self, what):
        return tw.Study(
            tw.Space(what=tw.Constant(what), x=tw.Float(0, 1)), "min val_loss", searcher=tw.RandomSearcher()
        )

    def test_lost_trials_are_given_up_after_three_restarts(self):
        """A trial whose process keeps being killed is lost and retried, and after more than 3 losses abandoned."""
        study = self.study("is_killed")
        seen = []
        with pytest.raises(_Enough):
            study.run(trainings.does, trials=1, engine=_Counting(seen, until=5), progress=False)
        first, second = study.trials
        assert first.status is Status.ABANDONED
        assert (first.lease, first.blamed_losses) == (4, 4)
        assert [lease.end for lease in first.leases.values()] == [None] * 4
        assert seen == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)]
        assert second.lease == 1

    def test_overhead_of_a_trial_is_small(self):
        """Many short trials reuse few processes."""
        study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min val_loss", searcher=tw.RandomSearcher())
        study.run(trainings.plain, trials=40, engine=Local(workers=2), progress=False)
        assert len({trial.values["pid"] for trial in study.trials}) == 2


class _Enough(Exception):
    pass


class _Counting(Local):
    """Local, until so many launches."""

    def __init__(self, seen, until):
        super().__init__()
        self._seen, self._until = seen, until

    def launch(self, assignment, block):
        self._seen.append((assignment.trial, assignment.lease))
        if len(self._seen) == self._until:
            raise _Enough
        super().launch(assignment, block)


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"workers": -1}, "Local.workers: got -1; allowed: a whole number >= 0"),
            ({"workers": "2"}, "Local.workers: got '2'; allowed: a whole number >= 0"),
            ({"timeout_seconds": 0}, "Local.timeout_seconds: got 0; allowed: a number > 0, or None for no limit"),
            ({"timeout_seconds": "9"}, "Local.timeout_seconds: got '9'; allowed: a number > 0, or None for no limit"),
            ({"memory_bytes": -1}, "Local.memory_bytes: got -1; allowed: a number > 0, or None for no limit"),
            (
                {"workers": 0, "memory_bytes": 9},
                "Local.memory_bytes: got 9 with workers=0; a limit needs a process to kill",
            ),
            ({"grace_seconds": -1}, "Local.grace_seconds: got -1; allowed: a number >= 0"),
            ({"gpus": "0"}, "Local.gpus: got '0'; allowed: a list of GPUs, such as [0, 1], or () for none, or None"),
            ({"gpus": 0}, "Local.gpus: got 0; allowed: a list of GPUs, such as [0, 1], or () for none, or None"),
        ],
    )
    def test_bad_settings(self, settings, sentence):
        with pytest.raises(EngineError) as caught:
            Local(**settings)
        assert str(caught.value) == sentence

    def test_gpus_where_there_are_none(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(EngineError, match=r"Local.gpus: got \[0\], but .* show no GPU here; leave gpus out"):
            Local(gpus=[0])

    def test_gpus_of_the_environment(self, monkeypatch):
        """CUDA_VISIBLE_DEVICES says what there is; named ones are taken as they are."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a, -1")
        assert Local(workers=2).devices((0, 1)) == ("cuda:GPU-8f3a",)
        assert Local(workers=0).devices((0,)) == ("cuda:GPU-8f3a",)
        assert Local(workers=0, gpus=()).devices((0,)) == ("cpu:0",)
        assert Local(workers=2, gpus=[3]).devices((1,)) == ("cuda:3",)


def test_a_worker_without_a_driver_ends():
    """A worker is gone with its driver's end of the line, and closing waits for it."""
    worker = WorkerProcess(range(1), WorkerListener(), {})
    pid = worker._process.pid
    worker.close(kill=False)
    assert worker.ended
    assert not Path(f"/proc/{pid}").exists()
