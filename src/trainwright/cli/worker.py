"""`trainwright worker WHERE`: join a study and run its trials, with any number of other workers."""

import sys
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import INTERRUPTED, Argument, Option, Result, options_of
from trainwright.cli.workflow.study_file import read_job
from trainwright.cluster.visible_devices import visible_gpus
from trainwright.engine import Local
from trainwright.engine.nodes.engine import GangPlace
from trainwright.errors import EngineError
from trainwright.study import Study, Worker
from trainwright.study.driver.budget import Budget

__all__ = ["worker"]


@options_of(Budget, "trials", "wall_seconds", "deadline", takes="limits")
@options_of(
    Worker,
    "rank",
    "grace_seconds",
    "give_up_seconds",
    "wait",
    "other_job",
    grace_seconds="--grace",
    give_up_seconds="--give-up",
    wait="--wait/--no-wait",
    other_job="--other-job",
)
def worker(
    where: Annotated[str, Argument(help="The study's directory or URL, or the file (.toml, .py) that makes it.")],
    *,
    ledger: Annotated[str | None, Option(help="Its URL, if the directory does not know it.")] = None,
    train: Annotated[str | None, Option(help="What to run, as module:function.")] = None,
    limits: dict[str, Any],
    workers: Annotated[int | None, Option(help="Trials at once; else one a GPU.")] = None,
    gang: Annotated[int, Option(help="Tasks of the launcher, one per node, that share trials.")] = 1,
    changes: dict[str, Any],
    quiet: Annotated[bool, Option("--quiet", help="Print no progress.")] = False,
) -> Result:
    """Join a study wherever its ledger is reachable, and run trials until its budget is used up.

    Any launcher starts it (a shell loop, mpirun, srun); workers may come, go and die at any time.
    """
    # The module of --train may be in the current folder.
    sys.path.append(str(Path.cwd()))
    settings: dict[str, Any] = {"train": train}
    # A study file makes the study if it is not there yet; an address only opens one.
    if where.endswith((".toml", ".py")):
        job = read_job(Path(where))
        study = job.open_study()
        settings = {"train": train or job.train, "searcher": job.searcher, "scheduler": job.scheduler}
        settings["engine"] = job.engine if workers is None else None
        # Options of the command line override the file.
        limits = {**job.budget, **limits}
    else:
        study = Study.open(where, ledger=ledger)
    # One trial per GPU by default: two on one would compete for its memory.
    if settings.get("engine") is None:
        settings["engine"] = Local(workers if workers is not None else max(1, len(visible_gpus())))
    if gang > 1:
        place = GangPlace.of(gang, study.directory)
        if not place.drives:
            # The driver keeps the study.
            study.close()
            told = place.serve(workers)
            return Result({"place": place.place}, status=0 if told else INTERRUPTED)
        settings["engine"] = place.engine(workers, settings.get("engine"))
    with study:
        joining = Worker(where=study, **settings, **changes)
        try:
            share = joining.work(Budget(**limits, grace_seconds=joining.grace_seconds), progress=not quiet)
        except EngineError as error:
            # Nothing is wrong with the study, which goes on where all nodes are there.
            if not (joining.engine is not None and joining.engine.gone):
                raise
            print(f"trainwright: {error}", file=sys.stderr)
            return Result({"gone": sorted(joining.engine.gone)}, status=INTERRUPTED)
        results = study.state.results
        if not quiet:
            print(f"this worker: {share.results} of {results} results in {where}")
        content = {"ours": share.results, "results": results, "trials": len(study.trials)}
    return Result(content, status=INTERRUPTED if share.out_of_time else 0)
