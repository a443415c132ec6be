"""submitit: jobs of an executor that work on a study, leave before their time limit, and are requeued until it is done.

Shortly before the end submitit sends a job a signal, upon which it pickles what is to run next, and requeues the job.
That would end trials in the middle of an epoch. So here the worker gets the signal first: its trials end their epoch or
save, and only then submitit requeues the job.
"""

import signal
import sys
from typing import Any

from trainwright.engine.function_reference import FunctionReference, load_reference
from trainwright.errors import InputError, MissingExtra
from trainwright.study import Study, Worker
from trainwright.study.driver.budget import Budget

with MissingExtra.instead_of_import_error("trainwright.integrations.submitit", "submitit", "submitit"):
    from submitit import Executor, Job, helpers
    from submitit.core.job_environment import JobEnvironment

__all__ = ["WorkerJob", "submit_workers"]


class WorkerJob:
    """What a job runs: a worker of a study, until the study's budget is used; it returns how many results were its own.

    Its training function is found by its module and name, or those of the script that submits it.
    """

    def __init__(self, worker: Worker, limits: dict[str, Any]) -> None:
        if isinstance(worker.where, Study):
            raise InputError("submitit: got a Worker of an open study; give the study's directory or URL as where=")
        self._settings = {name: getattr(worker, name) for name in worker.__slots__ if name != "train"}
        found = worker.train
        self._train = FunctionReference.of(found) if callable(found) else found
        self._limits = limits
        self._path = list(sys.path)

    def __call__(self) -> int:
        """Work; a job that is told to leave is requeued by submitit, and never returns."""
        sys.path += [folder for folder in self._path if folder not in sys.path]
        number = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        requeue = signal.getsignal(number)
        # The worker notes signals that nobody else handles.
        signal.signal(number, signal.SIG_DFL)
        train = load_reference(self._train) if isinstance(self._train, FunctionReference) else self._train
        worker = Worker(train=train, **self._settings)
        results, leaves = 0, True
        try:
            share = worker.work(Budget(**self._limits, grace_seconds=worker.grace_seconds), progress=False)
            results, leaves = share.results, share.out_of_time
        except KeyboardInterrupt:
            if not callable(requeue):
                raise
        if leaves and callable(requeue):
            requeue(number, None)
        return results

    def checkpoint(self) -> helpers.DelayedSubmission:
        """Return what a requeued job runs: the same, for all that is known is in the study's ledger."""
        return helpers.DelayedSubmission(self)


def submit_workers(executor: Executor, worker: Worker, jobs: int = 1, **limits: Any) -> "list[Job[int]]":
    """Submit jobs that each run `worker` until the study is done, and return them.

    `limits` are those of `Worker.run`: `trials` of the whole study, `wall_seconds` of a job, `deadline`. The executor's
    `slurm_max_num_timeout` says how often a job may be requeued at its time limit, its `slurm_signal_delay_s` how long
    before it is told; give the worker less `grace_seconds`.
    """
    task = WorkerJob(worker, limits)
    with executor.batch():
        return [executor.submit(task) for _ in range(jobs)]
