"""A Slurm cluster on this machine, of one node or several, for tests that start workers with srun."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Slurm", "missing_for_slurm", "slurm_of"]

_CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
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
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""
# A job that was put back waits until its credential has expired, and the partition "urgent" preempts the other.


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Slurm:
    """A controller and a daemon for each node; `environment` is that of commands for it."""

    def __init__(self, folder, nodes):
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.nodes = [f"node{number}" for number in range(nodes)]
        self._servers = {}
        self._start("controller", "slurmctld", "-D")
        for name in self.nodes:
            self._start(name, "slurmd", "-D", "-N", name)
        self.wait_for_nodes()

    def _start(self, name, *command):
        own = {**os.environ, **self.environment}
        self._servers[name] = subprocess.Popen(command, env=own, stderr=subprocess.DEVNULL)

    def wait_for_nodes(self):
        """Wait until all nodes have come up and are idle."""
        command = ["sinfo", "-h", "-N", "-p", "all", "-o", "%T"]
        for _ in range(200):
            asked = subprocess.run(
                command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
            )
            if asked.stdout.split() == ["idle"] * len(self.nodes):
                return
            time.sleep(0.3)
        raise TimeoutError(asked.stdout + asked.stderr)

    def kill_node(self, name):
        """Kill a node's daemon and all processes of its jobs, as when it loses power, and tell the controller."""
        server = self._servers.pop(name)
        server.kill()
        server.wait()
        own = {f"SLURM_CONF={self.environment['SLURM_CONF']}".encode(), f"SLURMD_NODENAME={name}".encode()}
        killed = set()
        while mine := {pid for pid, variables in _processes() if own <= variables} - killed:
            # The daemons of steps first: they report what they see.
            parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in mine}
            daemons = {pid for pid in parents if Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")}
            for pid in (*daemons, *mine):
                os.kill(pid, signal.SIGKILL)
            killed |= mine
        self._update(name, "State=DOWN", "Reason=power")

    def start_node(self, name):
        """Start a node again after `kill_node`."""
        self._start(name, "slurmd", "-D", "-N", name)
        self._update(name, "State=RESUME")

    def _update(self, name, *words):
        own = {**os.environ, **self.environment}
        subprocess.run([str(shutil.which("scontrol")), "update", f"NodeName={name}", *words], env=own, check=True)

    def stop(self):
        """End all daemons, the controller last."""
        for server in reversed(self._servers.values()):
            server.terminate()
            server.wait()


def _processes():
    """Yield (number, variables) of the processes whose environment can be read."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            yield int(path.parent.name), set(path.read_bytes().split(b"\0"))
        except OSError:
            continue


@contextmanager
def slurm_of(folder, nodes=1):
    """Run a Slurm of so many nodes as long as this is entered, and yield it."""
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs={os.cpu_count()}"
        for number in range(nodes)
    ]
    (folder / "state").mkdir()
    text = _CONFIGURATION.format(host=host, folder=folder, controller=_free_port(), nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(text)
    if (
        subprocess.run([str(shutil.which("munge")), "-n"], capture_output=True, check=False).returncode != 0
    ):  # nobody behind its socket
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        subprocess.run([shutil.which("runuser"), "-u", "munge", "--", "munged", "--force"], check=True)
    slurm = Slurm(folder, nodes)
    try:
        yield slurm
    finally:
        slurm.stop()


def missing_for_slurm():
    """Return why Slurm cannot be started here; "" if it can."""
    missing = [name for name in ("srun", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}; install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "needs root"
