"""Examine what can start trials and workers: Slurm, PBS, MPI, Ray, PyCOMPSs; and a Redis server for the ledger."""

import re
from collections.abc import Iterator

from trainwright.engine.doctor.finding import Area, Finding, Grade
from trainwright.engine.doctor.machine import Machine

__all__ = ["examine_engines"]

_SECONDS = 5.0


def examine_engines(host: Machine) -> Iterator[Finding]:
    """Yield each engine and launcher; only what is started by hand or by a user is missing without harm."""
    yield _make_finding("local", Grade.FINE, "trials as processes of this machine: tw.Local(workers=N)")
    yield _examine_ray(host)
    yield _examine_slurm(host)
    yield _examine_pbs(host)
    yield _examine_mpi(host)
    yield _examine_program(host, "PyCOMPSs", "runcompss", "tw.PyCOMPSs, on a COMPSs installation")
    yield _examine_program(
        host, "Redis", "redis-server", "a ledger for hundreds of workers; one host of the job runs it"
    )


def _make_finding(name: str, state: Grade, says: str, mend: str = "") -> Finding:
    return Finding(area=Area.ENGINES, name=name, state=state, says=says, mend=mend)


def _examine_ray(host: Machine) -> Finding:
    version = host.version("ray")
    if version is None:
        return _make_finding("Ray", Grade.ABSENT, "tw.Ray, trials on several nodes", 'pip install ".[ray]"')
    address = host.environment.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS names {address}" if address else "no RAY_ADDRESS: tw.Ray() starts it on this machine"
    return _make_finding("Ray", Grade.FINE, f"{version}; {where}")


def _examine_slurm(host: Machine) -> Finding:
    job = host.environment.get("SLURM_JOB_ID")
    if job is not None:
        nodes = host.environment.get("SLURM_JOB_NUM_NODES", "?")
        return _make_finding("Slurm", Grade.FINE, f"in job {job} on {nodes} nodes: srun trainwright worker DIR")
    if host.which("sbatch") is None:
        return _make_finding("Slurm", Grade.ABSENT, "no sbatch on the path")
    partitions = host.run(["sinfo", "--noheader", "--format=%P"], _SECONDS)
    if partitions.status != 0:
        return _make_finding("Slurm", Grade.ABSENT, "its commands are installed, but no controller answers")
    names = ", ".join(partitions.out.split()[:8])
    return _make_finding("Slurm", Grade.FINE, f"a login node, or outside of a job; partitions: {names}")


def _examine_pbs(host: Machine) -> Finding:
    job = host.environment.get("PBS_JOBID")
    if job is not None:
        return _make_finding("PBS", Grade.FINE, f"in job {job}")
    if host.which("qsub") is None:
        return _make_finding("PBS", Grade.ABSENT, "no qsub on the path")
    return _make_finding("PBS", Grade.FINE, "qsub is there, outside of a job")


def _examine_mpi(host: Machine) -> Finding:
    found = next((name for name in ("mpirun", "mpiexec") if host.which(name) is not None), None)
    if found is None:
        return _make_finding("MPI", Grade.ABSENT, "no mpirun on the path; only the launcher would be used, no library")
    lines = host.run([found, "--version"], _SECONDS).out.splitlines()
    return _make_finding(
        "MPI", Grade.FINE, f"{lines[0].strip() if lines else found}: {found} -n N trainwright worker DIR"
    )


def _examine_program(host: Machine, name: str, program: str, gives: str) -> Finding:
    if host.which(program) is None:
        return _make_finding(name, Grade.ABSENT, f"{gives}: no {program} on the path")
    if program != "redis-server":
        return _make_finding(name, Grade.FINE, f"{program} is there: {gives}")
    version = re.search(r"v=(\S+)", host.run([program, "--version"], _SECONDS).out)
    return _make_finding(name, Grade.FINE, f"{program} {version[1] if version else ''} is there: {gives}")
