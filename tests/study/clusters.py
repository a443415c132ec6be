"""A Slurm cluster on this machine, of one node or several, for tests that start workers with srun."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

__all__ = ["missing_for_slurm", "slurm_of"]

_CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={controller}
JobRequeue=1
KillWait=30
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def slurm_of(folder, nodes=1):
    """Run a controller and a daemon for each of `nodes`, as long as this is entered; yield the environment of srun."""
    host = socket.gethostname().partition(".")[0]
    names = [f"node{number}" for number in range(nodes)]
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs={os.cpu_count()}"
        for name in names
    ]
    (folder / "state").mkdir()
    path = folder / "slurm.conf"
    path.write_text(_CONFIGURATION.format(host=host, folder=folder, controller=_free_port(), nodes="\n".join(lines)))
    if (
        subprocess.run([str(shutil.which("munge")), "-n"], capture_output=True, check=False).returncode != 0
    ):  # nobody behind its socket
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        subprocess.run([shutil.which("runuser"), "-u", "munge", "--", "munged", "--force"], check=True)
    environment = {"SLURM_CONF": str(path)}
    everything = {**os.environ, **environment}
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in names)]
    servers = [subprocess.Popen(command, env=everything, stderr=subprocess.DEVNULL) for command in commands]
    try:
        for _ in range(100):
            command = ["sinfo", "-h", "-N", "-o", "%T"]
            asked = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
            if asked.stdout.split() == ["idle"] * nodes:
                break
            time.sleep(0.3)
        else:
            raise TimeoutError(asked.stdout + asked.stderr)
        yield environment
    finally:
        for server in reversed(servers):
            server.terminate()
            server.wait()


def missing_for_slurm():
    """Return why Slurm cannot be started here; "" if it can."""
    missing = [name for name in ("srun", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}; install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "needs root"
