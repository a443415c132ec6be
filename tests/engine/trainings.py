"""Training functions that behave badly on purpose, at the top of a module so that workers find them."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from pathlib import Path

__all__ = [
    "Trainer",
    "decorated",
    "does",
    "draws_of_torch",
    "plain",
]


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def plain(trial):
    """Report once."""
    trial.report(val_loss=trial.params["x"], pid=os.getpid())


def does(trial):
    """Do what `trial.params["what"]` says."""
    return globals()[f"_{trial.params['what']}"](trial)


def _reports_pid(trial):
    trial.report(val_loss=1.0, pid=os.getpid())


def _reports_pid_and_sleeps(trial):
    _reports_pid(trial)
    time.sleep(600)


def _sums_ranks(trial):
    """Return the sum of rank + 1 over the ranks."""
    import torch

    own = torch.tensor([trial.rank + 1.0])
    torch.distributed.all_reduce(own)
    sys.stdout.write(f"rank {trial.rank} of {trial.world_size}\n")
    trial.report(val_loss=float(own))
    return float(own)


def _loses_rank_one(trial):
    if trial.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    trial.report(val_loss=1.0)


def _prints(trial):
    sys.stdout.write(f"hello from trial {trial.number}\n")
    sys.stderr.write("and from its errors\n")
    os.write(1, b"even past Python\n")


def _changes_directory(trial):
    assert Path.cwd() == Path(trial.params["home"])
    os.chdir("/")


def _hangs(trial):
    """Ignore the polite request, with a child that does so too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
    )
    Path(trial.params["file"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def _is_signalled(trial):
    """Send itself what launchers send, and see what its children make of it."""
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        forked.start()
    child = subprocess.Popen([sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"], **PIPES)
    child.stdout.readline()
    for pid in (os.getpid(), forked.pid, child.pid):
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    os.kill(os.getpid(), signal.SIGTERM)
    living = [forked.is_alive(), child.poll() is None]
    forked.terminate()
    child.terminate()
    forked.join()
    trial.report(val_loss=1.0, living=sum(living), forked=forked.exitcode, child=child.wait())
    child.communicate()


def _waits_for_condemnation(trial):
    if "file" in trial.params:
        signal.signal(signal.SIGTERM, lambda *_: (Path(trial.params["file"]).write_text("bye"), os._exit(3)))
    trial.report(val_loss=1.0)
    time.sleep(600)


def _hogs(trial):
    block = bytearray(trial.params["bytes"])
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(600)


def _child_hogs(trial):
    code = f"import time; b = bytearray({trial.params['bytes']}); b[::4096] = b'x' * len(b[::4096]); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], check=False)


def _raises(trial):
    raise ValueError("a first line\nand a second")


def _raises_unprintable(trial):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

        def __reduce__(self):
            raise RuntimeError

    raise Unprintable


def _raises_memory_error(trial):
    raise MemoryError("too large")


def _returns_tensor(trial):
    import torch

    return {"val_loss": torch.tensor(0.25), "count": torch.tensor([3])}


def _returns_socket(trial):
    import socket

    return socket.socket()


def _exits(trial):
    sys.exit(3)


def _exits_hard(trial):
    os._exit(3)


def _closes_all_files(trial):
    """Cut the line to the driver, and take some time to notice."""
    os.closerange(3, 65_536)
    time.sleep(0.3)


def _crashes(trial):
    ctypes.string_at(0)


def _is_killed(trial):
    os.kill(os.getpid(), signal.SIGKILL)


def _is_killed_with_a_child(trial):
    """Leave a forked child that holds all of this process's files open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _leaves_a_bomb(trial):
    """End well, and kill the process while it waits for its next trial."""
    subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.5); os.kill({os.getpid()}, 9)"])
    trial.report(val_loss=1.0, pid=os.getpid())


def _shows_environment(trial):
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    Path(trial.params["file"]).write_text(repr({name: os.environ.get(name) for name in names}))


def _reports_after_the_end(trial):
    _LATE.append(trial)
    if len(_LATE) > 1:
        _LATE[0].report(val_loss=0.0)


_LATE = []  # trials kept longer than they live


def _makes_a_model(trial):
    """Return how many models of earlier trials are still in memory."""
    import torch

    alive = sum(model() is not None for model in _MODELS)
    model = torch.nn.Linear(2, 2)
    model.itself = [model]  # a circle, as hooks make them
    run = trial.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trial.scratch["run"] = run
    _MODELS.append(weakref.ref(model))
    return alive


_MODELS = []


def _runs_a_study(trial):
    import trainwright as tw

    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min val_loss", searcher=tw.RandomSearcher())
    study.run(plain, trials=2, engine=tw.Local(workers=0), progress=False)
    return study.best.values["val_loss"]


def _is_a_rank(trial):
    """Report the sum of all ranks' numbers, and leave a file of what this rank is."""
    import torch

    print(f"rank {trial.rank}")  # noqa: T201 -- into its log
    for _ in trial.epochs(trial.params.get("epochs", 1)):
        total = torch.tensor(float(trial.rank))
        torch.distributed.all_reduce(total)
        if "folder" in trial.params:
            place = (trial.rank, trial.world_size, trial.devices)
            told = {"place": place, "threads": os.environ["OMP_NUM_THREADS"], "draw": torch.rand(()).item()}
            Path(trial.params["folder"], str(trial.rank)).write_text(repr(told))
        trial.report(val_loss=1.0, rank=trial.rank, sum=total.item())
    return trial.rank


def _fails_as_rank_1(trial):
    trial.report(val_loss=1.0)
    if trial.rank == 1:
        raise ValueError("out of luck")
    trial.report(val_loss=1.0)


def _hangs_but_rank_1(trial):
    """Tell all process numbers; rank 1 waits where others might kill it, rank 0 for rank 1."""
    import torch

    if trial.rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = torch.zeros(trial.world_size)
    pids[trial.rank] = os.getpid()
    torch.distributed.all_reduce(pids)
    trial.report(val_loss=1.0, **{f"pid of {rank}": pid for rank, pid in enumerate(pids.tolist())})
    if trial.rank == 1:
        time.sleep(600)
    torch.distributed.barrier()


def _reports_as_rank_0_alone(trial):
    if trial.rank == 0:
        trial.report(val_loss=1.0)


def draws_of_torch(trial):
    """Return torch's first draw, importing torch only here."""
    import torch

    return float(torch.rand(()))


def _wrap(function):
    from functools import wraps

    @wraps(function)
    def wrapped(trial):
        return function(trial)

    return wrapped


decorated = _wrap(plain)  # its name is "plain", and leads to something else


class Trainer:
    """Methods of many kinds."""

    def method(self, trial):
        """Need an object."""

    @staticmethod
    def static(trial):
        """Need none."""
        return 0.5

    def __call__(self, trial):
        """Be a function."""
