"""Runs one training of a proof: a process for each rank, connected as torchrun connects them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainwright.checkpoint.tools.step_digests import ProofPlan
from trainwright.errors import CheckpointError

__all__ = ["run_ranks", "run_script"]

# That ranks get to die after the first one that was to.
_AFTER_KILL_SECONDS = 10.0


def run_script(plan: ProofPlan, script: Path, arguments: Sequence[str], timeout_seconds: float, *, alone: bool) -> None:
    """Run a script as one run of a proof. Raises as `run_ranks`."""
    path = Path(f"{plan.journal}.plan")
    plan.write(path)
    start = "import sys; from trainwright.checkpoint.tools.step_digests import main; main(sys.argv[1:])"
    run_ranks(plan, str(script), ["-c", start, str(path), str(script), *arguments], timeout_seconds, alone=alone)


def run_ranks(plan: ProofPlan, name: str, arguments: Sequence[str], timeout_seconds: float, *, alone: bool) -> None:
    """Call Python with `arguments` once for each rank; `alone` without the variables by which ranks find each other.

    Raises `CheckpointError`, in which it is called `name`, if it fails, or takes longer than `timeout_seconds`.
    """
    command = [sys.executable, *arguments]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(plan.ranks)}
    deadline = time.monotonic() + timeout_seconds
    members = []
    for rank in range(plan.ranks):
        place = {} if alone else {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with Path(f"{plan.journal}.said.{rank}").open("wb") as said:
            members.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **place})
            )
    try:
        for member in members:
            member.wait(max(0.0, deadline - time.monotonic()))
            # What the others wait for never comes.
            if plan.kill_at:
                deadline = min(deadline, time.monotonic() + _AFTER_KILL_SECONDS)
    except subprocess.TimeoutExpired as error:
        if not (plan.kill_at and members[0].poll() is not None):
            raise CheckpointError(
                f"verify-resume: {name} took longer than {timeout_seconds:g} s; give it more, or fewer steps or epochs"
            ) from error
    finally:
        for member in members:
            member.kill()
            member.wait()
    if plan.kill_at and members[0].returncode < 0:
        return
    for rank, member in enumerate(members):
        if member.returncode != 0:
            lines = Path(f"{plan.journal}.said.{rank}").read_text(encoding="utf-8", errors="replace").strip()
            last = (lines.splitlines() or ["no message"])[-1]
            raise CheckpointError(f"verify-resume: {name} ended with status {member.returncode}: {last}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
