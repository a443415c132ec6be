"""`trainwright run FILE`: the stages that the file names, from a plan to a deployment; each is done once."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import Argument, Option, Result, options_of
from trainwright.cli.workflow.serving import DeploymentStage
from trainwright.cli.workflow.stage import StageRecords, StudyJob, WorkflowStage
from trainwright.cli.workflow.study_file import STAGES, read_job
from trainwright.errors import InputError
from trainwright.report import write_report, write_summary
from trainwright.study.driver.budget import Budget
from trainwright.validators import check, one_of

__all__ = ["run"]


@options_of(
    Budget,
    "trials",
    "wall_seconds",
    "device_seconds",
    "deadline",
    "grace_seconds",
    takes="limits",
    grace_seconds="--grace",
)
def run(
    file: Annotated[Path, Argument(help="A study file (.toml), or a Python file with `study` and `train`.")],
    *,
    directory: Annotated[Path | None, Option(help="Where to keep the study.")] = None,
    limits: dict[str, Any],
    workers: Annotated[int | None, Option(help="Trials at once on this machine.")] = None,
    stage: Annotated[list[str] | None, Option(help="Run only this stage; may be repeated.")] = None,
    force: Annotated[bool, Option("--force", help="Also run unchanged stages.")] = False,
    serve: Annotated[bool, Option("--serve", help="Then serve as [deployment] says, until Ctrl-C.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print no progress.")] = False,
) -> Result:
    """Run or resume a study and the further stages of its file; what is done and unchanged is skipped."""
    job = read_job(file, directory=directory, workers=workers)
    where = [] if directory is None else ["--directory", str(directory)]
    job.command = ("trainwright", "run", str(file), *where)
    job.progress = not quiet
    # Options of the command line override the file.
    job.budget |= limits
    wanted = _choose_stages(job.stages, stage or [], file)
    served = next((item for item in wanted if isinstance(item, DeploymentStage)), None)
    if serve and served is None:
        raise InputError(f"--serve: {file} has no [deployment], or --stage leaves it out; add the table")
    # A study in memory: its result is all there is, and nothing is written.
    if job.directory is None and len(job.stages) == 1:
        content = dict(wanted[0].run(job).content)
        if not quiet:
            wanted[0].show(content)
        return Result(content)
    # Before any stage: a file of another study must not change anything in this folder.
    if job.study_exists:
        job.open_study().close()  # refuses a file of another study before anything is done
    # What each stage rested on when it last ran, so that an unchanged one is skipped.
    stages = StageRecords(job.folder)
    ran = [_run_stage(each, job, stages, force=force) for each in wanted]
    summary = _summary_entries(job, stages)
    report = job.folder / "report.html"
    if job.study_exists:
        summary = write_summary(job.folder, also=summary)
        # The report is drawn again only if a stage has changed something.
        if any(ran) or not report.exists():
            write_report(job.folder)
        summary["report"] = str(report)
    if not quiet and job.study_exists:
        print(f"\nreport:     {report}")
        if served is not None and not serve:
            print(f"to serve:   {shlex.join([*job.command, '--serve'])}")
        print(f"continue:   {shlex.join([*job.command, '--trials', str(2 * max(1, summary['finished']))])}")
    if serve and served is not None:
        summary["served"] = served.serve(job)
    return Result(summary)


def _choose_stages(stages: tuple[WorkflowStage, ...], names: list[str], file: Path) -> tuple[WorkflowStage, ...]:
    """Return the stages of these names, in their order; all of them if none is named."""
    known = [stage.name for stage in stages]
    for name in names:
        check(name, one_of(*STAGES), "--stage")
        # A stage that exists but that this file does not ask for gets a sentence of its own.
        if name not in known:
            raise InputError(f"--stage: {file} has no [{name}]; stages there: {', '.join(known)}; add the table")
    return tuple(stage for stage in stages if not names or stage.name in names)


def _run_stage(stage: WorkflowStage, job: StudyJob, stages: StageRecords, *, force: bool) -> bool:
    """Run a stage unless it is unchanged, and show what came out; return whether it ran."""
    inputs = stage.inputs(job)
    # Unknown inputs mean that the stage cannot be skipped.
    why = "" if inputs is None else stages.changed(stage.name, inputs)
    record = stages.read(stage.name)
    if why is None and record is not None and not force:
        if job.progress:
            print(f"\n== {stage.name}: unchanged, skipped")
            stage.show(record["content"])
        return False
    if len(job.stages) > 1 and job.progress:
        again = f": again, {why}" if record is not None and why else ""
        print(f"\n== {stage.name}{again}", flush=True)
    outcome = stage.run(job)
    # The search changes the ledger that it rests on.
    inputs = inputs if outcome.inputs is None else outcome.inputs
    content = stages.write(stage.name, inputs or {}, outcome)
    if job.progress:
        stage.show(content)
    return True


def _summary_entries(job: StudyJob, stages: StageRecords) -> dict[str, Any]:
    """Return what the stages give to the summary that are done, and rest on nothing that changed since."""
    found: dict[str, Any] = {}
    for stage in job.stages:
        record = stages.read(stage.name)
        if record is None:
            continue
        try:
            inputs = stage.inputs(job)
        except InputError:
            # A stage whose inputs are gone has nothing to tell, but must not hide what other stages did.
            continue
        if inputs is not None and stages.changed(stage.name, inputs) is None:
            found |= record["content"].get("summary", {})
    return found
