"""Signals: a flag at a step boundary, the way out of a hung step, and ranks that stop together."""

import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from trainwright.checkpoint import CheckpointConfig
from trainwright.checkpoint.policy.save_policy import SavePolicy
from trainwright.checkpoint.policy.signals import SignalFlag
from trainwright.checkpoint.ranks.ranks import Agreement
from trainwright.errors import CheckpointConfigError, CheckpointError

HUNG = """
    import ctypes
    lib, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    lib.pthread_mutex_lock(mutex)
    print("ready", flush=True)
    lib.pthread_mutex_lock(mutex)  # never comes back to Python: no handler runs
"""
RANK = """
    import sys, time
    import torch.distributed as dist
    from trainwright.checkpoint.ranks.ranks import Agreement
    from trainwright.checkpoint.policy.signals import SignalFlag

    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    agreement = Agreement(dist.new_group(backend="gloo"), every=5)
    with SignalFlag(("SIGUSR1",)) as flag:
        print("ready", flush=True)
        for step in range(1, 100_000):
            time.sleep(0.0005 * (1 + rank))
            stop, never = agreement.step(flag.received is not None, False)
            assert not never
            if stop:
                break
        print(step, flag.received, flush=True)
    dist.destroy_process_group()
"""


@pytest.fixture
def start():
    """Return a function that starts a script; whatever still runs at the end is killed."""
    started = []

    def run(script, *arguments):
        command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def handler():
    """Return the list of signals that an earlier handler of SIGUSR1 saw; it raises if told so."""
    seen = []

    def note(number, frame):
        seen.append(signal.Signals(number).name)
        if len(seen) == 2:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, note)
    yield seen
    signal.signal(signal.SIGUSR1, before)


def hung(options=""):
    return f"""
    from trainwright.checkpoint.policy import signals
    {options}
    {HUNG}"""


class TestSignalFlag:
    def test_sets_a_flag_and_nothing_else(self):
        """Both signals are seen by name, the first counts, and the old handlers are back at the end."""
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
        with SignalFlag() as flag:
            assert flag.received is None
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert flag.received == "SIGUSR1"
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
        assert signal.set_wakeup_fd(-1) == -1
        flag.close()

    def test_earlier_handlers_are_called(self, handler):
        with SignalFlag() as flag:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (handler, flag.received) == (["SIGUSR1"], "SIGUSR1")
            flag.raise_pending()

    def test_what_an_earlier_handler_raises_waits(self, handler):
        """A handler that interrupts does so at the step boundary, not in the middle of a step."""
        with SignalFlag() as flag:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGUSR1)
            assert len(handler) == 2
            with pytest.raises(KeyboardInterrupt):
                flag.raise_pending()

    def test_a_later_handler_is_left_alone(self, handler):
        """Closed out of turn, the flag passes signals on to the earlier handler and sees none itself."""
        first, second = SignalFlag(), SignalFlag()
        first.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (first.received, second.received, len(handler)) == (None, "SIGUSR1", 1)
        second.close()

    def test_a_wakeup_descriptor_in_use(self):
        """An event loop has taken it: it keeps it, and the flag works by its handler."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        try:
            with SignalFlag() as flag:
                os.kill(os.getpid(), signal.SIGUSR1)
                assert (flag.received, flag._woken) == ("SIGUSR1", False)
        finally:
            assert signal.set_wakeup_fd(-1) == write
        assert select.select([read], [], [], 0)[0]
        for end in (read, write):
            os.close(end)

    def test_only_in_the_main_thread(self):
        """Elsewhere it warns and sees nothing."""

        def make():
            with pytest.warns(
                UserWarning, match="signals are not watched: handlers can be set in the main thread only"
            ):
                SignalFlag().close()
            done.append(True)

        done = []
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert done

    def test_no_signals(self):
        with SignalFlag(()) as flag:
            assert flag.received is None

    @pytest.mark.parametrize("grace", [5, 0, -1, float("inf"), float("nan")])
    def test_refuses_a_grace_too_short(self, grace):
        with pytest.raises(
            CheckpointConfigError, match=rf"grace_seconds: got {grace}; allowed: a number of seconds > 5"
        ):
            SignalFlag(grace_seconds=grace)

    @pytest.mark.parametrize("name", ["SIGUSER1", "SIGKILL", ""])
    def test_refuses_other_signals(self, name):
        with pytest.raises(CheckpointConfigError, match=f"signals: got '{name}'; allowed: names such as 'SIGUSR1'"):
            SignalFlag((name,))


class TestForcedExit:
    def test_a_hung_step(self, start):
        """The grace runs from the signal on even if the main thread hangs outside of Python; the status is 75."""
        process = start(hung("flag = signals.SignalFlag(grace_seconds=5.2)"))
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=250)
        assert process.returncode == 75
        assert said.startswith("trainwright: forced exit: 0.2 s after the signal the step is not over; the newest")

    def test_a_second_signal(self, start):
        """It ends the process at once; the echo of the first does not."""
        options = "signals._ECHO_SECONDS = 0.3; flag = signals.SignalFlag(grace_seconds=None)"
        process = start(hung(options))
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=250)
        assert (process.returncode, said.split("; ")[0]) == (75, "trainwright: forced exit: a second signal, SIGTERM")

    def test_a_forked_child_is_not_concerned(self, start):
        """It dies of the signal as before, and its parent sees none."""
        process = start("""
            import os, signal, warnings
            from trainwright.checkpoint.policy.signals import SignalFlag
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks with threads
            with SignalFlag() as flag:
                child = os.fork()
                if child == 0:
                    assert signal.set_wakeup_fd(-1) == -1
                    os.kill(os.getpid(), signal.SIGTERM)
                    os._exit(1)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flag.received, flush=True)
        """)
        assert process.communicate(timeout=250) == ("-15 None\n", "")


class TestAgreement:
    def test_alone(self):
        """One process follows its wishes at once."""
        agreement = Agreement()
        assert [agreement.step(True, False) for _ in range(3)] == [(True, False)] * 3

    @pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
    def test_all_ranks_stop_at_the_same_step(self, start, tmp_path, size):
        """A signal at a random time to one of them, each at another pace."""
        ranks = [start(RANK, rank, size, tmp_path / "store") for rank in range(size)]
        for process in ranks:
            assert process.stdout.readline() == "ready\n"
        generator = random.Random(size)
        with pytest.raises(subprocess.TimeoutExpired):
            ranks[0].wait(generator.uniform(0.01, 0.3))
        struck = generator.randrange(size)
        ranks[struck].send_signal(signal.SIGUSR1)
        answers = [process.communicate(timeout=250) for process in ranks]
        assert [err for _, err in answers if "Error" in err] == []
        words = [out.split() for out, _ in answers]
        assert len({step for step, _ in words}) == 1
        assert [name for _, name in words] == ["SIGUSR1" if rank == struck else "None" for rank in range(size)]

    def test_a_rank_that_left(self):
        """The error of the network becomes a sentence."""

        class Lost:
            def wait(self):
                raise RuntimeError("Connection closed by peer [127.0.0.1]:4242\nmore")

        agreement = Agreement(object(), every=1)
        agreement._pending = (0, Lost(), None)
        with pytest.raises(CheckpointError, match=r"one of them seems gone: Connection closed by peer .*:4242$"):
            agreement.step(True)


TRAINING = """
    import os, subprocess, sys, time
    import torch
    from trainwright.checkpoint import CheckpointConfig, Manager

    folder, rank, size, status = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if size > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hook = lambda: subprocess.call(["sh", "-c", f"echo called >> {folder}.hook; exit {status}"])
    config = CheckpointConfig(interval=10_000_000, hook=hook)
    manager = Manager(folder, config=config, model=model, optimizer=optimizer)
    manager.restore()
    print("at", manager.steps, flush=True)
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.001)
        try:
            manager.step()
        except SystemExit as end:
            print("left", manager.steps, end.code, flush=True)
            raise
        if step == 5:
            print("ready", flush=True)
"""


class TestManager:
    @pytest.mark.parametrize("status", [3])
    def test_saves_and_leaves(self, start, tmp_path, status):
        """After the signal the step is saved, the hook called once, and its status is that of the process."""
        process = start(TRAINING, tmp_path / "run", 0, 1, status)
        assert [process.stdout.readline() for _ in range(2)] == ["at 0\n", "ready\n"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=250)
        steps = int(out.split()[1])
        assert (process.returncode, out) == (status, f"left {steps} {status}\n")
        assert "Traceback" not in err
        assert (tmp_path / "run.hook").read_text() == "called\n"
        assert [path.name for path in (tmp_path / "run").iterdir()] == [f"step-{steps:012d}"]
        again = start(TRAINING, tmp_path / "run", 0, 1, status)
        assert again.stdout.readline() == f"at {steps}\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("struck", [0, 1])
    def test_all_ranks_leave_together(self, start, tmp_path, struck):
        """Whoever gets the signal: one step, one checkpoint of two ranks, one call of the hook."""
        ranks = [start(TRAINING, tmp_path / "run", rank, 2, 4) for rank in range(2)]
        for process in ranks:
            assert [process.stdout.readline() for _ in range(2)] == ["at 0\n", "ready\n"]
        ranks[struck].send_signal(signal.SIGUSR1)
        answers = [process.communicate(timeout=250)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [4, 4]
        assert answers[0] == answers[1]
        steps = int(answers[0].split()[1])
        assert (steps % 3, (tmp_path / "run.hook").read_text()) == (0, "called\n")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [f"step-{steps:012d}"]

    def test_a_trial_s_is_left_to_its_engine(self):
        """No handler is set unless it is asked for."""
        before = signal.getsignal(signal.SIGTERM)
        pace = SavePolicy(CheckpointConfig(), alone=False)
        assert pace.signal is None
        assert signal.getsignal(signal.SIGTERM) == before
        pace.close()

    def test_handlers_come_with_the_first_step(self):
        """A training that never calls `step` would not hear of a signal: it dies of it as before."""
        before = signal.getsignal(signal.SIGTERM)
        pace = SavePolicy(CheckpointConfig(), alone=True)
        assert signal.getsignal(signal.SIGTERM) == before
        assert pace.signal is None
        assert signal.getsignal(signal.SIGTERM) != before
        pace.close()
        assert signal.getsignal(signal.SIGTERM) == before
