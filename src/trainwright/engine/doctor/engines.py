"""Examine what can start trials and workers: Slurm, PBS, MPI, Ray, PyCOMPSs; and a Redis server for the ledger."""

import re
from collections.abc import Iterator

from trainwright.engine.doctor.finding import Area, Finding, Grade
from trainwright.engine.doctor.machine import Machine

__all__ = ["examine_engines"]

_SECONDS = 5.0


def examine_engines(host: Machine) -> Iterator[Finding]:
    """Yield each engine and launcher; only what is started by hand or by a user is missing without harm."""
    yield _finding("local", Grade.FINE, "trials as processes of this machine: tw.Local(workers=N)")
    yield _ray(host)
    yield _slurm(host)
    yield _pbs(host)
    yield _mpi(host)
    yield _program(host, "PyCOMPSs", "runcompss", "tw.PyCOMPSs, on a COMPSs installation")
    yield _program(host, "Redis", "redis-server", "a ledger for hundreds of workers; one host of the job runs it")


def _finding(name: str, state: Grade, says: str, mend: str = "") -> Finding:
    return Finding(area=Area.ENGINES, name=name, state=state, says=says, mend=mend)


def _ray(host: Machine) -> Finding:
    version = host.version("ray")
    if version is None:
        return _finding("Ray", Grade.ABSENT, "tw.Ray, trials on several nodes", 'pip install ".[ray]"')
    address = host.environment.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS names {address}" if address else "no RAY_ADDRESS: tw.Ray() starts it on this machine"
    return _finding("Ray", Grade.FINE, f"{version}; {where}")


def _slurm(host: Machine) -> Finding:
    job = host.environment.get("SLURM_JOB_ID")
    if job is not None:
        nodes = host.environment.get("SLURM_JOB_NUM_NODES", "?")
        return _finding("Slurm", Grade.FINE, f"in job {job} on {nodes} nodes: srun trainwright worker DIR")
    if host.which("sbatch") is None:
        return _finding("Slurm", Grade.ABSENT, "no sbatch on the path")
    partitions = host.run(["sinfo", "--noheader", "--format=%P"], _SECONDS)
    if partitions.status != 0:
        return _finding("Slurm", Grade.ABSENT, "its commands are installed, but no controller answers")
    names = ", ".join(partitions.out.split()[:8])
    return _finding("Slurm", Grade.FINE, f"a login node, or outside of a job; partitions: {names}")


def _pbs(host: Machine) -> Finding:
    job = host.environment.get("PBS_JOBID")
    if job is not None:
        return _finding("PBS", Grade.FINE, f"in job {job}")
    if host.which("qsub") is None:
        return _finding("PBS", Grade.ABSENT, "no qsub on the path")
    return _finding("PBS", Grade.FINE, "qsub is there, outside of a job")


def _mpi(host: Machine) -> Finding:
    found = next((name for name in ("mpirun", "mpiexec") if host.which(name) is not None), None)
    if found is None:
        return _finding("MPI", Grade.ABSENT, "no mpirun on the path; only the launcher would be used, no library")
    lines = host.run([found, "--version"], _SECONDS).out.splitlines()
    return _finding("MPI", Grade.FINE, f"{lines[0].strip() if lines else found}: {found} -n N trainwright worker DIR")


def _program(host: Machine, name: str, program: str, gives: str) -> Finding:
    if host.which(program) is None:
        return _finding(name, Grade.ABSENT, f"{gives}: no {program} on the path")
    if program != "redis-server":
        return _finding(name, Grade.FINE, f"{program} is there: {gives}")
    version = re.search(r"v=(\S+)", host.run([program, "--version"], _SECONDS).out)
    return _finding(name, Grade.FINE, f"{program} {version[1] if version else ''} is there: {gives}")
