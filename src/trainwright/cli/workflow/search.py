"""The stage that every study file has: the search itself, whose record is the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trainwright.cli.workflow.stage import StageOutcome, StageRecords, StudyJob, digest_of, read_source
from trainwright.settings import Settings

__all__ = ["SearchStage"]

_CODE = "training code"


@dataclass(frozen=True, slots=True)
class SearchStage(Settings):
    """Run trials until the budget is used; unchanged once it is, until file, training code, budget or ledger differ."""

    name: ClassVar[str] = "search"

    def inputs(self, job: StudyJob) -> Mapping[str, Any] | None:
        """Return the tables that steer the search, the file of its training function, its budget, and the ledger."""
        tables = job.tables
        if not tables or job.directory is None or job.budget.keys() & {"wall_seconds", "deadline"}:
            # A Python file's objects have no digest, and another hour is another hour.
            return None
        parts = {name: tables.get(name) for name in ("space", "searcher", "rule", "policy")}
        settings = {key: value for key, value in tables["study"].items() if key not in {"directory", "trials"}}
        # The ledger itself, so that new or changed trials show.
        trials = (
            None
            if not job.study_exists
            else [
                (number, str(trial.status), trial.lease, trial.epoch, dict(trial.values))
                for number, trial in sorted(job.state(self.name).trials.items())
            ]
        )
        # It changes no result that is there already.
        budget = {key: value for key, value in job.budget.items() if key != "grace_seconds"}
        code = read_source(tables["study"]["train"], "train")
        return {**parts, "study": settings, _CODE: code, "budget": budget, "ledger": trials}

    def run(self, job: StudyJob) -> StageOutcome:
        """Run or go on."""
        if job.study_exists and job.progress and self._earlier_code(job):
            print("results stay as the earlier code made them; to train all trials again, name a new --directory")
        with job.open_study() as study:
            study.run(
                job.train,
                **job.budget,
                searcher=job.searcher,
                scheduler=job.scheduler,
                engine=job.engine,
                progress=job.progress,
            )
            content = {"trials": len(study.trials), "finished": study.state.results}
        return StageOutcome(content=content, inputs=self.inputs(job))

    def _earlier_code(self, job: StudyJob) -> bool:
        # A changed training function is no error: earlier results stay, new trials use the new code.
        record, inputs = StageRecords(job.folder).read(self.name), self.inputs(job)
        return record is not None and inputs is not None and record["inputs"].get(_CODE) != digest_of(inputs[_CODE])

    def show(self, content: Mapping[str, Any]) -> None:
        """Print how many results there are."""
        print(f"\n{content['finished']} of {content['trials']} trials have a result")
