"""Worker: one of many processes that work on one study, each with its own searcher, without a leader.

Asynchronous decentralised Bayesian optimisation (Égelé et al., arXiv 2207.00479), on a ledger instead of messages.
"""

from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Annotated

from trainwright.cluster.visible_devices import rank
from trainwright.engine import Engine, TrainFunction
from trainwright.engine.function_reference import load_function, script_boundary
from trainwright.errors import StudyError
from trainwright.schedule import AllocationPolicy, PromotionRule, Scheduler
from trainwright.search import Searcher
from trainwright.settings import Settings
from trainwright.study.driver.budget import Budget, TeamSettings, WorkerResult
from trainwright.study.notes import JobNote, SearcherNote
from trainwright.study.study import Study
from trainwright.validators import flag, integer, number, optional

__all__ = ["Worker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker(Settings, error=StudyError):
    """Join the study in `where` and work on it until its budget is used.

    What is left out (`train`, `searcher`, `scheduler`) is what the study was last run with. Workers may come and go at
    any time and be started by anything; `rank` is a hint at which slot to take (default: what the launcher says).
    Each slot has an exploration (kappa) of its own. A worker whose training function, searcher or rule differs from the
    study's is refused unless `other_job`. Without work of its own it waits for what others run, to take it over if they
    die, unless `wait` is False. Told to leave (by SIGTERM, SIGINT, SIGUSR1 or SIGUSR2, or by the end of its wall time),
    it gives its trials `grace_seconds` for their epoch. While the ledger has no room (a full disk) it stands still and
    tries again, and ends after `give_up_seconds`; other losses of the ledger end it at once. Workers of another version
    work together as long as they know the records' format.
    """

    where: Study | str | Path
    train: TrainFunction | str | None = None
    searcher: Searcher | None = None
    scheduler: Scheduler | PromotionRule | AllocationPolicy | None = None
    engine: Engine | None = None
    rank: Annotated[int | None, optional(integer(minimum=0)), "worker slot to try first"] = None
    wait: Annotated[bool, flag(), "wait for trials of other workers"] = True
    grace_seconds: Annotated[float, number(minimum=0), "seconds for the epoch in work at the end"] = 25.0
    give_up_seconds: Annotated[float, number(minimum=0), "seconds to retry a full ledger"] = 600.0
    other_job: Annotated[bool, flag(), "join with another training function, searcher or rule"] = False

    def run(
        self,
        *,
        trials: int | None = None,
        wall_seconds: float | None = None,
        device_seconds: float | None = None,
        deadline: str | datetime | time | None = None,
        max_failures: int | None = None,
        progress: bool = True,
    ) -> int:
        """Work until `trials` trials of the whole study have a result, and return how many of them are this worker's.

        `trials` left out are the study's; `wall_seconds` and `deadline` end this worker only. Raises
        `StudyError` where there is no study, or this worker would run something else than the others.
        """
        limits = Budget(
            trials=trials,
            wall_seconds=wall_seconds,
            device_seconds=device_seconds,
            deadline=deadline,
            max_failures=max_failures,
            grace_seconds=self.grace_seconds,
        )
        return self.work(limits, progress=progress).results

    def work(self, limits: Budget, *, progress: bool = True) -> WorkerResult:
        """Work as `run` does; return also whether the wall time was over before the work was."""
        script_boundary()
        study = self.where if isinstance(self.where, Study) else Study.open(self.where)
        try:
            if study is self.where:
                study.refresh()
            known = JobNote.last(study.state)
            train, scheduler = self._choose_parts(known)
            searcher = study.searching.choose(self.searcher, "Worker(..., searcher=...)")
            budget = limits if known is None else known.complete(limits)
            if budget.endless:
                raise StudyError("worker: the study has no budget yet; give --trials, or --wall-seconds")
            # A worker that would run something else would mix two studies in one ledger.
            different = None if known is None else known.difference(JobNote.of(train, scheduler, budget))
            if (fact := SearcherNote.last(study.state)) is not None and different is None:
                different = fact.difference(SearcherNote.of(searcher))
            if different is not None and not self.other_job:
                raise StudyError(f"worker: {different}; start it with the same, or say that it may (--other-job)")
            return study.work(
                train,
                budget,
                searcher=searcher,
                scheduler=scheduler,
                engine=self.engine,
                progress=progress,
                rank=self.rank if self.rank is not None else rank(),
                team=TeamSettings(wait=self.wait, give_up_seconds=self.give_up_seconds),
            )
        finally:
            if study is not self.where:
                study.close()

    def _choose_parts(self, known: JobNote | None) -> tuple[TrainFunction, Scheduler]:
        if isinstance(self.train, str):
            train = load_function(self.train)
        elif self.train is not None:
            train = self.train
        elif known is not None:
            train = known.load()
        else:
            raise StudyError("worker: nobody has run this study yet; say what to run: --train module:function")
        if self.scheduler is not None or known is None:
            return train, Scheduler.of(self.scheduler)
        return train, known.scheduler("Worker(..., scheduler=...)")
