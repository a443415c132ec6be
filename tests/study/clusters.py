"""A Slurm cluster of one node, for tests that start workers with srun."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

__all__ = ["one_node_slurm"]

_CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller}
SlurmdPort={daemon}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def one_node_slurm(folder):
    """Run controller and daemon in the foreground of this process's life; yield the environment of srun."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    path = folder / "slurm.conf"
    ports = {"controller": _free_port(), "daemon": _free_port()}
    path.write_text(_CONFIGURATION.format(host=host, folder=folder, cpus=os.cpu_count(), **ports))
    if (
        subprocess.run([str(shutil.which("munge")), "-n"], capture_output=True, check=False).returncode != 0
    ):  # nobody behind its socket
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        subprocess.run([shutil.which("runuser"), "-u", "munge", "--", "munged", "--force"], check=True)
    environment = {"SLURM_CONF": str(path)}
    everything = {**os.environ, **environment}
    servers = [
        subprocess.Popen([name, "-D"], env=everything, stderr=subprocess.DEVNULL) for name in ("slurmctld", "slurmd")
    ]
    try:
        for _ in range(100):
            command = ["sinfo", "-h", "-o", "%T"]
            asked = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
            if asked.stdout.strip() == "idle":
                break
            time.sleep(0.3)
        else:
            raise TimeoutError(asked.stdout + asked.stderr)
        yield environment
    finally:
        for server in reversed(servers):
            server.terminate()
            server.wait()
