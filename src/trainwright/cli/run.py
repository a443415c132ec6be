"""`trainwright run FILE`: the stages that the file names, from a plan to a deployment; each is done once."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.workflow.deployment import DeploymentStage
from trainwright.cli.workflow.stage import StageRun, WorkflowStage
from trainwright.cli.workflow.stage_records import StageRecords
from trainwright.cli.workflow.study_file import STAGES, read_job
from trainwright.errors import InputError
from trainwright.report import write_report, write_summary
from trainwright.validators import check, one_of

__all__ = ["run"]


def run(
    file: Annotated[Path, typer.Argument(help="A study file (.toml), or a Python file with `study` and `train`.")],
    *,
    directory: Annotated[Path | None, typer.Option(help="Where to keep the study.")] = None,
    trials: Annotated[int | None, typer.Option(help="How many trials with a result.")] = None,
    workers: Annotated[int | None, typer.Option(help="Trials at once on this machine.")] = None,
    grace: Annotated[float, typer.Option(help="Seconds for the running epoch when told to leave.")] = 25.0,
    stage: Annotated[list[str] | None, typer.Option(help="Only this stage; may be given again.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Do stages again that are unchanged.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Then answer requests as [deployment] says, until Ctrl-C.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing while it runs.")] = False,
) -> Result:
    """Run a study, or go on with it, and the further stages of its file; what is done and unchanged is skipped."""
    job = read_job(file, directory=directory, workers=workers)
    where = [] if directory is None else ["--directory", str(directory)]
    work = StageRun(
        file=file,
        job=job,
        directory=job.directory,
        # Options of the command line override the file.
        budget={**job.budget, **({} if trials is None else {"trials": trials}), "grace_seconds": grace},
        progress=not quiet,
        command=("trainwright", "run", str(file), *where),
    )
    wanted = _choose_stages(job.stages, stage or [], file)
    served = next((item for item in wanted if isinstance(item, DeploymentStage)), None)
    if serve and served is None:
        raise InputError(f"--serve: {file} has no [deployment], or --stage leaves it out; add the table")
    # A study in memory: its result is all there is, and nothing is written.
    if work.directory is None and len(job.stages) == 1:
        content = dict(wanted[0].run(work).content)
        if not quiet:
            wanted[0].show(content)
        return Result(content)
    # Before any stage: a file of another study must not change anything in this folder.
    if work.study_exists:
        job.open_study().close()  # refuses a file of another study before anything is done
    # What each stage rested on when it last ran, so that an unchanged one is skipped.
    stages = StageRecords(work.folder)
    ran = [_run_stage(each, work, stages, force=force, quiet=quiet, titled=len(job.stages) > 1) for each in wanted]
    summary: dict[str, Any] = {}
    report = work.folder / "report.html"
    if work.study_exists:
        summary = write_summary(work.folder, also=_summary_entries(job.stages, work, stages))
        # The report is drawn again only if a stage has changed something.
        if any(ran) or not report.exists():
            write_report(work.folder)
        summary["report"] = str(report)
    else:
        summary |= _summary_entries(job.stages, work, stages)
    if not quiet and work.study_exists:
        print(f"\nreport:     {report}")
        if served is not None and not serve:
            print(f"to serve:   {shlex.join([*work.command, '--serve'])}")
        print(f"to go on:   {shlex.join([*work.command, '--trials', str(2 * max(1, summary['finished']))])}")
    if serve and served is not None:
        summary["served"] = served.serve(work)
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


def _run_stage(stage: WorkflowStage, work: StageRun, stages: Any, *, force: bool, quiet: bool, titled: bool) -> bool:
    """Run a stage unless it is unchanged, and show what came out; return whether it ran."""
    inputs = stage.inputs(work)
    # Unknown inputs mean that the stage cannot be skipped.
    why = "" if inputs is None else stages.changed(stage.name, inputs)
    record = stages.read(stage.name)
    if why is None and not force:
        if not quiet:
            print(f"\n== {stage.name}: unchanged, skipped")
            stage.show(record.content)
        return False
    if titled and not quiet:
        again = f": again, {why}" if record is not None and why else ""
        print(f"\n== {stage.name}{again}", flush=True)
    outcome = stage.run(work)
    # The search changes the ledger that it rests on.
    inputs = inputs if outcome.inputs is None else outcome.inputs
    record = stages.write(stage.name, inputs or {}, outputs=outcome.outputs, content=outcome.content)
    if not quiet:
        stage.show(record.content)
    return True


def _summary_entries(all_stages: tuple[WorkflowStage, ...], work: StageRun, stages: Any) -> dict[str, Any]:
    """Return what the stages give to the summary that are done, and rest on nothing that changed since."""
    found: dict[str, Any] = {}
    for stage in all_stages:
        record = stages.read(stage.name)
        if record is None:
            continue
        try:
            inputs = stage.inputs(work)
        # A stage whose inputs are gone has nothing to tell, but must not hide what other stages did.
        except InputError:
            # What the stage rests on is gone.
            continue
        if inputs is not None and stages.changed(stage.name, inputs) is None:
            found |= stage.summary(record.content)
    return found
