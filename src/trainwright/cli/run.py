"""`trainwright run FILE`: search, then whatever stages the file names."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli._json import print_json

__all__ = ["run"]


def run(
    file: Annotated[Path, typer.Argument(help="A study file (.toml), or a Python file with `study` and `train`.")],
    *,
    directory: Annotated[Path | None, typer.Option("--directory", help="Where to keep the study.")] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="How many trials with a result.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Trials at once on this machine.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing while it runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Run a study, or go on with it; then select an ensemble and write the report, if the file asks for it."""
    from trainwright.cli._study_file import read_job
    from trainwright.report import write_report, write_summary

    job = read_job(file, directory=directory, workers=workers)
    budget = {**job.budget, **({} if trials is None else {"trials": trials})}
    study = job.open_study()
    study.run(
        job.train, **budget, searcher=job.searcher, scheduler=job.scheduler, engine=job.engine, progress=not quiet
    )
    study.close()
    summary: dict[str, Any] = {"trials": len(study.trials), "finished": study.state.results}
    if study.directory is not None:
        summary = write_summary(study.directory, ensemble=job.ensemble)
        summary["report"] = str(write_report(study.directory))
    if not quiet:
        show_summary(summary)
        if study.directory is not None:
            again = ["trainwright", "run", str(file), *([] if directory is None else ["--directory", str(directory)])]
            print(f"to go on:   {shlex.join([*again, '--trials', str(2 * max(1, summary['finished']))])}")
    if json:
        print_json(summary)


def show_summary(summary: dict[str, Any]) -> None:
    """Print what came out: the best single model beside the best ensemble under its cost, on held-out data."""
    print(f"\n{summary['finished']} of {summary['trials']} trials have a result")
    names = {"single": "best single", "ensemble": "best ensemble"}
    split = next((key[7:-9] for key in summary if key.startswith("single_") and key.endswith("_accuracy")), None)
    if split is not None:
        members = {"single": [summary["single_trial"]], "ensemble": summary["ensemble_trials"]}
        print(f"\n{'':15}{split + ' accuracy':>15}{'us per row':>13}  trials")
        for key, name in names.items():
            cost = summary[f"{key}_cost"]
            shown = "unknown" if cost is None else f"{1e6 * cost:.1f}"
            accuracy = summary[f"{key}_{split}_accuracy"]
            print(f"{name:15}{accuracy:15.4f}{shown:>13}  {', '.join(map(str, members[key]))}")
        if summary["cost_limit"] is not None:
            print(f"(the ensemble may cost {1e6 * summary['cost_limit']:.1f} us per row at batch 128)")
    if "report" in summary:
        print(f"\nreport:     {summary['report']}")
