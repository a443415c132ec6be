"""The study: a space, objectives and a directory; ask and tell, or run."""

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from trainwright.engine import Engine, Local, TrainFunction
from trainwright.engine.function_reference import script_boundary
from trainwright.errors import ObjectiveError, StudyError, TrainwrightError, TrialError
from trainwright.ledger import Ledger, TrialState, facts
from trainwright.ledger.objectives import Outcome, parse_constraints, parse_objectives, refusal
from trainwright.ledger.opening import is_url
from trainwright.schedule import AllocationPolicy, PromotionRule, Scheduler
from trainwright.search import Searcher, SearchView
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.study.driver.budget import Budget, TeamSettings, WorkerResult
from trainwright.study.driver.driver import Driver
from trainwright.study.driver.heartbeat import Heartbeat
from trainwright.study.driver.progress import Progress
from trainwright.study.notes import JobNote, Searching
from trainwright.study.projections import RuleProjection, SearchProjection, rungs_of
from trainwright.study.simulating import Simulating, expect_by_deadline, outcome_by_deadline
from trainwright.study.study_log import ENQUEUED, RetryOnFullDisk, StudyLog, check_study, open_study_ledger
from trainwright.train.assignment import as_number
from trainwright.validators import check, instance_of, integer, number, optional

__all__ = ["Study"]

_SECONDS = number(minimum=0)


class Study(Simulating):
    """A search over `space` for `objectives` ("min val_loss", or several), kept in `directory` or only in memory.

    `constraints` ("peak_bytes <= 8e9") limit further metrics: a trial that breaks one has a result, but is infeasible.
    `ledger` keeps the records elsewhere than in the directory: redis://HOST:PORT/0?study=NAME, for many workers.
    On a directory that holds the same study it resumes; if space, objectives, constraints or seed differ it raises
    `StudyError` naming the first difference. `searcher` proposes, in `ask` and in `run`; left out, it is the one that
    the study was searched by last, with all its settings, or at first the default. Another one takes its place.
    """

    def __init__(
        self,
        space: Space,
        objectives: str | Sequence[str],
        *,
        constraints: str | Sequence[str] = (),
        directory: str | Path | None = None,
        ledger: Ledger | str | None = None,
        seed: int = 0,
        searcher: Searcher | None = None,
    ) -> None:
        check(space, instance_of(Space, words="tw.Space(lr=tw.Float(...), ...)"), "space", StudyError)
        goals = parse_objectives(objectives)
        limits = parse_constraints(constraints, goals)
        check(seed, integer(minimum=0), "seed", StudyError)
        self.directory = None if directory is None else Path(directory)
        log = StudyLog(open_study_ledger(self.directory, ledger, create=True), self.directory)
        self.resumed = log.state.space is not None
        if self.resumed:
            check_study(log, space, goals, limits, seed)
        else:
            goal_texts, limit_texts = ([*map(str, outcomes)] for outcomes in (goals, limits))
            versions = _read_versions()
            log.append(
                facts.created(
                    space=space.to_json(), objectives=goal_texts, constraints=limit_texts, seed=seed, versions=versions
                )
            )
        self._set_up(log, space, searcher)

    @classmethod
    def open(
        cls, where: str | Path, *, ledger: Ledger | str | None = None, searcher: Searcher | None = None
    ) -> "Study":
        """Open the study in directory `where`, or at a Redis URL, to look at it, to export it, or to run on.

        A directory knows its study's `ledger`. Opened by its URL alone, a study has no place for checkpoints and logs.
        `searcher` is as in the constructor; one of a user's own class has to be given again.
        """
        study = cls.__new__(cls)
        study.directory = None if is_url(where) else Path(where)
        study.resumed = True
        log = StudyLog(open_study_ledger(where, ledger, create=False), study.directory)
        study._set_up(log, log.space(), searcher)  # noqa: SLF001 -- it is one of us
        return study

    def _set_up(self, log: StudyLog, space: Space, searcher: Searcher | None) -> None:
        self.space = space
        self._log = log
        self.searching = Searching(log, searcher)
        self._view: SearchView | None = None

    # Ask and tell.

    @overload
    def ask(self) -> Configuration: ...
    @overload
    def ask(self, count: int) -> list[Configuration]: ...
    def ask(self, count: int | None = None) -> Configuration | list[Configuration]:
        """Propose a configuration, or a list of `count`; each becomes a trial that waits for `tell`.

        What was enqueued, or left by a dead process, comes first. Raises `SpaceExhausted` if nothing new is left.
        """
        check(count, optional(integer(minimum=1)), "ask: count", StudyError)
        view = self._searcher_view()
        searcher = self.searching.choose(None, "Study.open(..., searcher=...)")
        wanted = count or 1
        # Configurations that a dead process had asked for come first: their trials exist.
        asked = list(itertools.islice(self._log.take_orphans(), wanted))
        numbers = [self._claim_number() for _ in range(wanted - len(asked))]
        if numbers:
            try:
                self.searching.note(searcher)
                proposals = searcher.ask(view, numbers)
                proposals = [replace(proposal, number=n) for n, proposal in zip(numbers, proposals, strict=True)]
                self._log.append(*itertools.starmap(self._log.proposal, zip(numbers, proposals, strict=True)))
            except BaseException:  # Ctrl-C, too: a number that is kept for nothing is missing in the end
                self._log.claims.release(numbers)
                raise
            self._log.asked.update(numbers)
            asked += proposals
        return asked if count is not None else asked[0]

    def enqueue(self, configuration: Mapping[str, Any]) -> TrialState:
        """Make a trial of known values, which anybody who asks or runs takes before all else; return it.

        A configuration that the study has is not entered again, so that a script may be run twice.
        """
        key = self.space.configuration_of(dict(configuration)).key
        # Equal configurations have equal keys, however their values were written.
        known = next((trial for trial in self.trials if trial.key == key), None)
        if known is not None:
            return known
        trial = self._enter_trial(configuration, ENQUEUED)
        self._log.claims.offer(trial.number)
        return trial

    def _claim_number(self) -> int:
        number = self._log.claims.number()
        assert number is not None  # noqa: S101 -- there is always another one without a limit
        return number

    def tell(
        self,
        configuration: Configuration | Mapping[str, Any],
        *,
        failed: str | None = None,
        repeat: bool = False,
        wall_seconds: float = 0.0,
        **metrics: float,
    ) -> TrialState:
        """Record the result of a configuration: one that was asked, or any legal mapping of values (a new trial).

        `failed` tells why there is none; an objective that is NaN or infinite fails the trial too. `repeat=True`
        records a second result as a new trial of the same values. `wall_seconds` is what it took, for searchers that
        weigh costs; 0 where nobody measured.
        """
        check(wall_seconds, _SECONDS, "tell: wall_seconds", TrialError)
        if not isinstance(configuration, Mapping):
            raise TrialError(f"tell: got {configuration!r}; allowed: a configuration from ask, or a mapping of values")
        if failed is not None and (metrics or not isinstance(failed, str)):
            beside = f" beside {', '.join(metrics)}" if metrics else ""
            raise TrialError(f"tell: got failed={failed!r}{beside}; allowed: a text alone, or metrics without failed=")
        number = configuration.number if isinstance(configuration, Configuration) else None
        trial = self._log.state.trials.get(number) if number is not None else None
        if isinstance(configuration, Configuration) and trial is not None and trial.key != configuration.key:
            # A configuration with the number of another study.
            trial = None
        if trial is not None and trial.status.ended and not repeat:
            raise _second_result_error(trial, metrics)
        values = {} if failed is not None else _validate_metrics(self._log.state.outcomes, metrics, number)
        if trial is None or trial.status.ended:
            trial = self._enter_trial(configuration, "told")
        lease = max(1, trial.lease)
        bad = refusal(self._log.state.outcomes, values, "in tell") if failed is None else None
        if failed is not None:
            self._log.append(facts.failed(trial.number, lease, failure="exception", message=failed))
        elif bad is not None:
            self._log.append(facts.failed(trial.number, lease, failure="bad_objective", message=bad))
        else:
            done = facts.finished(trial.number, lease, reason="completed", values=values, wall_seconds=wall_seconds)
            self._log.append(done)
        # Not before it is written: a failed tell can be repeated.
        self._log.asked.discard(trial.number)
        return trial

    def _enter_trial(self, configuration: Configuration | Mapping[str, Any], origin: str) -> TrialState:
        self._searcher_view()
        checked = self.space.configuration_of(dict(configuration))
        number = self._claim_number()
        self._log.append(self._log.proposal(number, replace(checked, number=number, origin={"searcher": origin})))
        return self._log.state.trials[number]

    def _searcher_view(self) -> SearchView:
        """Return the searcher's view, made at first use and kept up to date by the log from then on."""
        if self._view is None:
            state = self._log.state
            self._view = SearchView(self.space, state.seed, len(self.objectives), bounds=state.limits)
            projection = SearchProjection(self._view, state.outcomes)
            projection.catch_up(state.trials)
            self._log.add_projection(projection)
        return self._view

    # Run.

    def run(
        self,
        train: TrainFunction,
        *,
        trials: int | None = None,
        searcher: Searcher | None = None,
        scheduler: Scheduler | PromotionRule | AllocationPolicy | None = None,
        engine: Engine | None = None,
        wall_seconds: float | None = None,
        device_seconds: float | None = None,
        deadline: str | datetime | time | None = None,
        max_failures: int | None = None,
        grace_seconds: float = 25.0,
        progress: bool = True,
    ) -> None:
        """Run `train(trial)` until `trials` trials have a result, over the whole life of the study.

        A trial that is paused at a rung has one: with such a rule the run ends when it promotes nobody any more.
        `searcher` and `scheduler` left out are those that the study was run with last. `wall_seconds` ends this call,
        `device_seconds` (wall seconds times devices, over the whole life) likewise; so do SIGTERM, SIGINT, SIGUSR1 and
        SIGUSR2, with KeyboardInterrupt, where the program does not handle them itself. What runs then has
        `grace_seconds` to end its epoch (the last ones of the `wall_seconds`), is paused, and goes on from its
        checkpoint in the next call. A second signal ends it at once. A `deadline` ("18:00", an ISO time with a date, a
        datetime) makes the best trial that is complete by then the aim: early enough before it nothing new starts, and
        the best trials get all devices, as far as the policy may resize them. Without `trials` the other budgets or the
        space's last configuration end the run. Raises `StudyFailed` after `max_failures` failures (None: 100, or as
        many as have a result), or after 10 without one success; in a team that runs more at once, after as many. Two
        failures of one type, file and line without one success are enough, unless `max_failures` is given.
        """
        script_boundary()
        budget = Budget(
            trials=trials,
            wall_seconds=wall_seconds,
            device_seconds=device_seconds,
            deadline=deadline,
            max_failures=max_failures,
            grace_seconds=grace_seconds,
        )
        if budget.endless and self.space.size is None:
            raise StudyError("run: got no budget for an endless space; give trials=, deadline= or wall_seconds=")
        if scheduler is None and (job := JobNote.last(self._log.state)) is not None:
            scheduler = job.scheduler("study.run(..., scheduler=...)")
        chosen = self.searching.choose(searcher, "study.run(..., searcher=...)")
        try:
            self.work(
                train, budget, searcher=chosen, scheduler=Scheduler.of(scheduler), engine=engine, progress=progress
            )
        except TrainwrightError as failed:
            # The sentence says what is wrong and where; our frames between would only hide it.
            raise failed.with_traceback(None) from None

    def work(
        self,
        train: TrainFunction,
        budget: Budget,
        *,
        searcher: Searcher,
        scheduler: Scheduler,
        engine: Engine | None = None,
        progress: bool = True,
        rank: int | None = None,
        team: TeamSettings | None = None,
    ) -> WorkerResult:
        """Run trials until the budget is used, alone or in a `team` as `Worker` sets it up; return what came of it."""
        runner = engine if engine is not None else Local()
        check(runner, instance_of(Engine, words="an engine such as Local(workers=2)"), "engine", StudyError)
        log, state = self._log, self._log.state
        # It beats from the start, as reading a long ledger takes a while.
        with Heartbeat(log.ledger) as heartbeat:
            if team is not None:
                team = replace(team, slot=log.claims.claim_slot(rank))
            view = SearchView(
                self.space,
                state.seed,
                len(self.objectives),
                epochs=scheduler.rule.max_epochs,
                rungs=rungs_of(scheduler.rule),
                slot=None if team is None else team.slot,
                bounds=state.limits,
            )
            rule = RuleProjection(scheduler.rule, state.outcomes, self.seed)
            log.refresh()
            # The rule's index is rebuilt from the records, so that a resumed study decides as an uninterrupted one.
            for record in log.replay(rule.kinds):
                rule.fold(record, state.trials.get(record.trial) if record.trial is not None else None)
            rule.open()
            job, last = JobNote.of(train, scheduler, budget), JobNote.last(state)
            if last != job and (team is None or last is None):
                log.append(job.record(state.sessions))
            self.searching.note(searcher, again=team is None)
            seen = SearchProjection(view, state.outcomes)
            seen.catch_up(state.trials)
            shown = Progress(budget.trials, shown=progress)
            retry = None if team is None else RetryOnFullDisk(team.give_up_seconds, shown.say)
            complete = state.counts["complete"]
            with log.running(rule, seen, retry=retry):
                self._greet_user(shown)
                if budget.deadline is not None:
                    shown.say(expect_by_deadline(self, scheduler, runner, budget.clock_seconds))
                driver = Driver(
                    log=log,
                    rule=rule,
                    view=view,
                    searcher=searcher,
                    heartbeat=heartbeat,
                    scheduler=scheduler,
                    engine=runner,
                    budget=budget,
                    progress=shown,
                    team=team,
                )
                driver.run(train)
                if budget.deadline is not None:
                    shown.say(outcome_by_deadline(state, complete, shown.best))
        ours = sum(trial.has_result and trial.holder in log.mine for trial in self.trials)
        return WorkerResult(results=ours, out_of_time=driver.leaving.out_of_time and budget.trials is not None)

    def _greet_user(self, shown: Progress) -> None:
        """Say what a person should know of a study that is resumed."""
        if (made_by := self._log.state.versions.get("trainwright")) != (ours := _read_versions()["trainwright"]):
            shown.say(f"this study was made by trainwright {made_by}, this is {ours}")
        shown.warn_of(self._log.ledger.dropped())
        if self._log.state.trials:
            shown.resume(self._log.state)
            shown.say(f"{self.directory or 'this study'}: resuming with {self._log.state.results} results")

    def refresh(self) -> None:
        """Read what other processes appended since."""
        self._log.refresh()

    def close(self) -> None:
        """Let go of the ledger's files. A closed study can be opened again."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_versions() -> dict[str, str]:
    from trainwright import __version__

    return {"trainwright": __version__, "python": platform.python_version(), "numpy": np.__version__}


def _validate_metrics(outcomes: Sequence[Outcome], metrics: Mapping[str, Any], number: int | None) -> dict[str, float]:
    """Return the metrics of trial `number` as floats; raises `ObjectiveError` naming what is missing or no number."""
    where = "tell" if number is None else f"trial {number}"
    for outcome in outcomes:
        if outcome.metric not in metrics:
            got = ", ".join(sorted(metrics)) or "nothing"
            raise ObjectiveError(f"{where}: {outcome.word} {outcome.metric!r} is missing; got: {got}")
    numbers = {}
    for name, value in metrics.items():
        if isinstance(value, bool) or (found := as_number(value)) is None:
            raise ObjectiveError(f"{where}: {name} must be a number, got {value!r} ({type(value).__name__})")
        numbers[name] = found
    return numbers


def _second_result_error(trial: TrialState, metrics: Mapping[str, Any]) -> TrialError:
    now = ", ".join(f"{name}={value!r}" for name, value in metrics.items())
    had = ", ".join(f"{name}={value:g}" for name, value in trial.values.items())
    has = f"already has {had}" if had else f"has already ended ({trial.status})"
    return TrialError(
        f"trial {trial.number} {has}; pass repeat=True to record {now or 'this'} as a new trial of the same "
        "configuration"
    )
