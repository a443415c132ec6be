"""A storm over a cluster of several nodes on this machine: Slurm's or Ray's nodes die, and so do workers or drivers.

    python -m benchmarks.scale.nodes --on slurm --workers 4 --trials 300 --kills 30 --deaths 10 --json
    python -m benchmarks.scale.nodes --on ray --workers 1 --trials 60 --kills 10 --deaths 5 --json

On Slurm each worker is started by `srun`, on two nodes: daemons of their own, which die with all that runs on them and
come back. On Ray the one worker is the driver of a study, whose trials run on three nodes; those that die are replaced
by new ones. Whoever dies is started again. When all trials have a result, the records are looked through: trials
without a result are lost, those with two ends doubled. Where there is no Slurm or Ray it says so.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._report import ROOT
from benchmarks.scale.partitions import add_storm_arguments, finish_storm, run_storm, start_worker, work
from benchmarks.scale.team import _look_through

import trainwright as tw

__all__ = ["main"]

_SRUN = 'done=$1; shift; srun -Q -n1 -c1 -J $0 "$@" && test -e $done'
"""Runs a job of that name; srun's status is 0 as well if a node fails."""

_RAY = str(ROOT / "tests" / "engine" / "ray_cluster.py")


def _done(study: str) -> str:
    """Return the path of a file that is there once a worker has found all done."""
    return f"{study}.done"


def _storm_on_slurm(options: argparse.Namespace, folder: Path, errors: Any) -> dict[str, int]:
    draws, study = random.Random(options.seed), folder / "study"
    tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=study).close()
    (folder / "slurm").mkdir()
    with importlib.import_module("clusters").slurm_of(folder / "slurm", nodes=2) as slurm:
        os.environ.update(slurm.environment)

        def start(number: int) -> subprocess.Popen[bytes]:
            before = ["/bin/sh", "-c", _SRUN, f"storm{number}", _done(str(study))]
            return start_worker("benchmarks.scale.nodes", str(study), options.trials, errors, *before)

        def kill(number: int) -> None:
            # The worker at once; then its job, which may still wait for a node.
            for signal in (["--signal=KILL"], []):
                subprocess.run(["/usr/bin/env", "scancel", "-Q", *signal, f"--name=storm{number}"], check=False)

        def die() -> None:
            name = draws.choice(slurm.nodes)
            slurm.kill_node(name)
            time.sleep(draws.uniform(0.1, options.longest))
            slurm.start_node(name)

        struck = run_storm(options, draws, start, {"deaths": die}, kill)
    return {**_look_through(str(study), options.trials), **struck}


def _storm_on_ray(options: argparse.Namespace, folder: Path, errors: Any) -> dict[str, int]:
    draws, study = random.Random(options.seed), folder / "study"
    # Whoever joins by address has to agree with the cluster on tokens; this one is for this machine alone.
    variables = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, _RAY, "cluster", "1", "1", "1"]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
    with subprocess.Popen(command, env=variables, start_new_session=True, **piped) as cluster:
        said, orders = cluster.stdout, cluster.stdin
        assert said is not None
        assert orders is not None

        def answer() -> Any:
            for line in said:
                # Ray says this and that, too.
                if line.startswith(('"', "null")):
                    return json.loads(line)
            raise SystemExit("storm: the cluster of Ray does not start, or has ended")

        address = answer()

        def start(_: int) -> subprocess.Popen[bytes]:
            words = [sys.executable, _RAY, "study", address, str(study), str(options.trials)]
            return subprocess.Popen(words, env=variables, stderr=errors, start_new_session=True)

        def die() -> None:
            print(f"replace {draws.randrange(1, 3)}", file=orders, flush=True)
            answer()

        try:
            struck = run_storm(options, draws, start, {"deaths": die})
        finally:
            orders.close()
    return {**_look_through(str(study), options.trials), **struck}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the storm and print what the records say."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--on", choices=("slurm", "ray"), default="slurm")
    parser.add_argument("--deaths", type=int, default=10, help="of nodes")
    add_storm_arguments(parser, workers=4, trials=300, kills=30)
    options = parser.parse_args(argv)
    if options.worker is not None:
        work(options.worker, options.trials)
        Path(_done(options.worker)).touch()
        return {}
    sys.path.append(str(ROOT / "tests" / "study"))
    if options.on == "slurm" and (why := importlib.import_module("clusters").missing_for_slurm()):
        parser.error(why)
    if options.on == "ray" and (importlib.util.find_spec("ray") is None or options.workers != 1):
        parser.error("--on ray needs ray, and --workers 1: the driver")
    with tempfile.TemporaryDirectory(prefix="storm-") as name, Path(name, "errors").open("w") as errors:
        found = {"slurm": _storm_on_slurm, "ray": _storm_on_ray}[options.on](options, Path(name), errors)
    return finish_storm(f"scale_{options.on}", options, found)


if __name__ == "__main__":
    main()
