"""The examination of `trainwright doctor`: packages, devices, engines, and the folder of studies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwright.engine.doctor.folder import examine_folder
from trainwright.engine.doctor.machine import Machine, examine_devices
from trainwright.engine.doctor.packages import examine_extras, examine_packages, imported
from trainwright.errors import InputError

__all__ = ["Finding", "examine", "examine_engines"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, by the area where it belongs; `mend` is a command or an advice, or empty.

    States: "fine"; "absent", when nothing but what it would give is missing; "poor", which will trouble some people;
    "broken", when something essential does not work.
    """

    area: str  # installed, extras, devices, engines or folder
    name: str
    state: str
    says: str
    mend: str = ""


def examine(folder: str | Path = ".", *, host: Machine | None = None) -> tuple[Finding, ...]:
    """Look at this machine, or at `host`, and at a folder for studies; return what was found, in the order to tell it.

    It takes seconds, most of them importing torch.
    """
    if not Path(folder).is_dir():
        raise InputError(f"doctor: got {str(folder)!r}; allowed: a directory that is there; make it, or name another")
    host = host if host is not None else Machine()
    # Once for all areas: importing torch takes most of the time.
    probed = imported(host)
    areas = {
        "installed": examine_packages(host, probed),
        "extras": examine_extras(host),
        "devices": examine_devices(host, probed.get("torch", {})),
        "engines": examine_engines(host),
        "folder": examine_folder(host, Path(folder)),
    }
    return tuple(Finding(area, *row) for area, rows in areas.items() for row in rows)


# Name, program, the variable of a job, and what it gives.
_LAUNCHERS = (
    ("Slurm", "sbatch", "SLURM_JOB_ID", "srun trainwright worker DIR"),
    ("PBS", "qsub", "PBS_JOBID", "a worker a task: trainwright worker DIR"),
    ("MPI", "mpirun", "OMPI_COMM_WORLD_RANK", "mpirun -n N trainwright worker DIR; no MPI library is used"),
    ("PyCOMPSs", "runcompss", "COMPSS_HOME", "tw.PyCOMPSs, on a COMPSs installation"),
    ("Redis", "redis-server", "", "a ledger for hundreds of workers; one host of the job runs it"),
)


def examine_engines(host: Machine) -> Iterator[tuple[str, ...]]:
    """Yield each engine and launcher: name, state, what is told, what would mend it."""
    version, address = host.version("ray"), host.environment.get("RAY_ADDRESS")
    if version is None:
        yield "Ray", "absent", "tw.Ray, trials on several nodes", 'pip install ".[ray]"'
    else:
        where = f"RAY_ADDRESS names {address}" if address else "no RAY_ADDRESS: tw.Ray() starts it on this machine"
        yield "Ray", "fine", f"{version}; {where}"
    for name, program, variable, gives in _LAUNCHERS:
        if job := host.environment.get(variable):
            yield name, "fine", f"inside ({variable}={job}): {gives}"
        elif host.which(program) is not None:
            yield name, "fine", f"{program} is there: {gives}"
        else:
            yield name, "absent", f"{gives}: no {program} on the path"
