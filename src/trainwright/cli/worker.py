"""`trainwright worker WHERE`: join a study and work on it, beside any number of others."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli._json import print_json
from trainwright.cli.workflow.study_file import read_job
from trainwright.engine import Local
from trainwright.engine.devices import visible_gpus
from trainwright.study import Study, Worker
from trainwright.study.driver.budget import Budget

__all__ = ["worker"]


def worker(
    where: Annotated[str, typer.Argument(help="The study's directory or URL, or the file (.toml, .py) that makes it.")],
    *,
    ledger: Annotated[str | None, typer.Option("--ledger", help="Its URL, if the directory does not know it.")] = None,
    train: Annotated[str | None, typer.Option("--train", help="What to run, as module:function.")] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Results of the whole study.")] = None,
    wall_seconds: Annotated[float | None, typer.Option("--wall-seconds", help="Leave before so long is over.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Trials at once; else one a GPU.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Which slot to try first (default: as launched).")] = None,
    grace: Annotated[float, typer.Option("--grace", help="Seconds for the running epoch when told to leave.")] = 25.0,
    give_up: Annotated[float, typer.Option("--give-up", help="Seconds to wait for room on a full disk.")] = 600.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Leave as soon as there is nothing to start.")] = False,
    other_job: Annotated[bool, typer.Option("--other-job", help="Run something else than the others do.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing while it runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Join a study from anywhere that sees its ledger, and run trials until its budget is used.

    Any launcher starts it (a shell loop, mpirun, srun); workers may come, go and die at any time.
    """
    sys.path.append(str(Path.cwd()))  # where the module of --train may be
    settings: dict[str, Any] = {"train": train}
    stop_when = None
    # A study file makes the study if it is not there yet; an address only opens one.
    if where.endswith((".toml", ".py")):
        job = read_job(Path(where))
        study = job.open_study()
        settings = {"train": train or job.train, "searcher": job.searcher, "scheduler": job.scheduler}
        settings["engine"] = job.engine if workers is None else None
        trials = trials if trials is not None else job.budget.get("trials")
        stop_when = job.budget.get("stop_when")
        wall_seconds = wall_seconds if wall_seconds is not None else job.budget.get("wall_seconds")
    else:
        study = Study.open(where, ledger=ledger)
    # One trial per GPU by default: two on one would compete for its memory.
    if settings.get("engine") is None:
        settings["engine"] = Local(workers if workers is not None else max(1, len(visible_gpus())))
    with study:
        budget = Budget(trials=trials, wall_seconds=wall_seconds, stop_when=stop_when, grace_seconds=grace)
        share = Worker(
            where=study,
            rank=rank,
            wait=not no_wait,
            grace_seconds=grace,
            give_up_seconds=give_up,
            other_job=other_job,
            **settings,
        ).work(budget, progress=not quiet)
        results = study.state.results
        if not quiet:
            print(f"this worker: {share.results} of {results} results in {where}")
        if json:
            print_json({"ours": share.results, "results": results, "trials": len(study.trials)})
    if share.out_of_time:
        raise typer.Exit(130)
