"""`trainwright plan --search study.py`: device-hours and wall time of a whole search before it is submitted."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.inputs import OracleSettings
from trainwright.cli.options import options_of
from trainwright.cli.workflow.study_file import read_job
from trainwright.errors import InputError
from trainwright.plan import Oracle
from trainwright.report.formatting import duration
from trainwright.schedule import Scheduler
from trainwright.study.forecast.search_plan import plan_search
from trainwright.validators import check, integer

__all__ = ["search"]


@options_of(OracleSettings)
def search(
    file: Annotated[
        Path, typer.Argument(help="A Python file with study, train, scheduler, samples and profile_of(params).")
    ],
    *,
    changes: dict[str, Any],
    devices: Annotated[int, typer.Option(min=1, help="Devices of a new trial.")] = 1,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the study.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="How many studies to simulate.")] = 10,
) -> Result:
    """Predict what a study costs: its searcher and scheduler on a virtual clock, its epochs as the oracle says."""
    job = read_job(file)
    profile_of, samples = _needed(file, "profile_of"), _needed(file, "samples")
    if not callable(profile_of):
        raise InputError(f"--search: profile_of in {file}: got {profile_of!r}; allowed: a function of params")
    check(samples, integer(minimum=1, of="samples of an epoch"), f"--search: samples in {file}")
    if job.scheduler is None:
        raise InputError(f"--search: {file} has no scheduler; define scheduler = tw.ASHA(...), or what the study uses")
    settings = OracleSettings(**changes)
    machine = settings.find_cluster()
    # Only the space is read: nothing is run, and nothing written.
    with job.open_study() as study:
        space = study.space
    found = plan_search(
        Oracle(machine),
        profile_of,
        space=space,
        scheduler=Scheduler.of(job.scheduler),
        searcher=job.searcher,
        trials=trials,
        samples=samples,
        devices=devices,
        seeds=seeds,
        precision=settings.precision,
        optimizer=settings.optimizer,
        max_memory_bytes=settings.max_memory_bytes(),
    ).cost
    print(f"{trials} trials on {machine.name} ({machine.devices} devices); {seeds} simulated studies")
    print(f"device-hours  {found.device_hours:.3g} (median), nine of ten below {found.device_hours_90:.3g}")
    print(f"wall time     {duration(found.wall_seconds)} (median), nine of ten below {duration(found.wall_seconds_90)}")
    print(
        f"infeasible    {100 * found.infeasible:.0f} % of {found.configurations} configurations do not fit into memory"
    )
    return Result({**asdict(found), "seeds": seeds, "devices": machine.devices, "schema": 1})


def _needed(file: Path, name: str) -> Any:
    found = getattr(sys.modules.get(file.stem), name, None)
    if found is None:
        raise InputError(
            f"--search: {file} has no {name}; allowed: a Python file with profile_of(params), which returns a profile "
            "and a batch, and samples, those of an epoch"
        )
    return found
