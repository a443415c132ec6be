"""The stage that every study file has: the search itself, whose record is the ledger."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trainwright.cli.stages._stage import Outcome, Work
from trainwright.study.driver import StudyFailed

__all__ = ["Search"]


@dataclass(frozen=True, slots=True)
class Search:
    """Run trials until the budget is used; unchanged once it is, until file, budget or ledger differ."""

    name: ClassVar[str] = "search"

    def inputs(self, work: Work) -> Mapping[str, Any] | None:
        """Return the tables that steer the search, its budget, and the state of the ledger."""
        tables = work.job.tables
        if not tables or work.directory is None or "wall_seconds" in work.budget:
            return None  # a Python file's objects have no digest; another hour is another hour
        parts = {name: tables.get(name) for name in ("space", "searcher", "rule", "policy", "stop")}
        settings = {key: value for key, value in tables["study"].items() if key not in {"directory", "trials"}}
        trials = (
            None
            if not work.made
            else [
                (number, str(trial.status), trial.lease, trial.epoch, dict(trial.values))
                for number, trial in sorted(work.state(self.name).trials.items())
            ]
        )
        budget = {key: value for key, value in work.budget.items() if key != "stop_when"}
        return {**parts, "study": settings, "budget": budget, "ledger": trials}

    def run(self, work: Work) -> Outcome:
        """Run or go on."""
        job = work.job
        with job.open_study() as study:
            try:
                study.run(
                    job.train,
                    **work.budget,
                    searcher=job.searcher,
                    scheduler=job.scheduler,
                    engine=job.engine,
                    progress=work.progress,
                )
            except StudyFailed as error:
                traced = [one.number for one in study.trials if one.failure is not None and one.failure.traceback]
                if work.directory is None or not traced:
                    raise
                look = shlex.join(["trainwright", "status", str(work.directory), "--trial", str(max(traced))])
                raise StudyFailed(f"{error}; with its traceback: {look}") from error
            content = {"trials": len(study.trials), "finished": study.state.results}
        return Outcome(content=content, inputs=self.inputs(work))

    def show(self, content: Mapping[str, Any]) -> None:
        """Print how many results there are."""
        print(f"\n{content['finished']} of {content['trials']} trials have a result")

    def summary(self, _content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing: the summary counts trials itself."""
        return {}
